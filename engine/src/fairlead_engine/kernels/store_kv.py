"""Writing a step's keys and values into the cache."""

from torch import Tensor


def store_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Copies key and value [tokens, kv_heads, head_dim] into the slabs keys and values [kv_heads, slots, head_dim].

    `slots` [tokens] says where each token goes. The slots of a step are distinct: two tokens never share one.
    """
    keys.index_copy_(1, slots, key.transpose(0, 1))
    values.index_copy_(1, slots, value.transpose(0, 1))
