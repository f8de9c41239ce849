"""What fits: context length and KV blocks against model and memory, and the sentences when it does not."""

from pathlib import Path

import pytest

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.startup import CacheSize, choose_cache_size
from fairlead_engine.errors import ConfigError, KVCacheTooSmall
from fairlead_engine.machine.memory import format_bytes, free_memory

KIB = 1024
GIB = 1024**3


def config(**changes: object) -> EngineConfig:
    return EngineConfig(model="folder", **changes)  # type: ignore[arg-type]


def choose(
    context: int, *, device_memory: int | None = None, bytes_per_block: int = KIB, **changes: object
) -> CacheSize:
    return choose_cache_size(
        config(**changes), device_memory=device_memory, bytes_per_block=bytes_per_block, max_position_embeddings=context
    )


def test_the_context_is_the_models_unless_configured() -> None:
    assert choose(2048).max_model_len == 2048
    assert choose(2048, max_model_len=100).max_model_len == 100


@pytest.mark.parametrize("length", [2049, 1])
def test_a_context_that_cannot_be_is_refused_by_name(length: int) -> None:
    with pytest.raises(ConfigError, match="max-model-len"):
        choose(2048, max_model_len=length)


def test_configured_memory_becomes_whole_blocks() -> None:
    assert choose(64, kv_cache_memory=1000 * KIB, bytes_per_block=3 * KIB) == CacheSize(64, 333)


def test_a_context_nobody_asked_for_is_lowered_to_what_the_memory_holds(caplog: pytest.LogCaptureFixture) -> None:
    # A Llama of 1B in float32: 16 layers of 8 key and value heads with 64 elements.
    per_block = 2 * 16 * 8 * 64 * 4 * 16
    assert choose(131072, kv_cache_memory=GIB, bytes_per_block=per_block) == CacheSize(16384, 1024)
    for part in ("from the 131072 tokens", "to 16384", "take 1 GiB", "need 8 GiB", "kv-cache-memory to 8589934592"):
        assert part in caplog.text
    assert choose(131072, kv_cache_memory=GIB - per_block, bytes_per_block=per_block) == CacheSize(16128, 1023)


def test_a_context_somebody_asked_for_is_never_lowered() -> None:
    with pytest.raises(KVCacheTooSmall, match="max-model-len to at most 16384"):
        choose(131072, max_model_len=131072, kv_cache_memory=KIB * KIB)


def test_a_context_of_the_whole_cache_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert choose(16384, kv_cache_memory=KIB * KIB) == CacheSize(16384, 1024)
    assert not caplog.text


@pytest.mark.parametrize("context", [2048, 131072])
def test_too_little_memory_names_the_settings_and_the_longest_length(context: int) -> None:
    with pytest.raises(KVCacheTooSmall) as raised:
        choose(context, kv_cache_memory=10 * KIB)
    assert raised.value.reason == "NotEnoughMemory"
    needed = context // 16 * KIB
    for part in ("max-model-len to at most 160", f"kv-cache-memory to at least {needed}", f"{context} tokens needs"):
        assert part in raised.value.message


def test_no_shorter_length_is_offered_when_not_even_one_block_fits() -> None:
    with pytest.raises(KVCacheTooSmall) as raised:
        choose(2048, kv_cache_memory=10)
    assert "set max-model-len" not in raised.value.message


def test_without_configuration_a_cpu_takes_at_most_a_gibibyte() -> None:
    assert 4 < choose(64).num_blocks <= GIB // KIB


def test_a_devices_own_memory_is_used_as_far_as_it_is_left() -> None:
    assert choose(64, device_memory=5 * GIB) == CacheSize(64, 5 * KIB * KIB)
    assert choose(64, device_memory=5 * GIB, kv_cache_memory=4 * KIB) == CacheSize(64, 4)
    with pytest.raises(KVCacheTooSmall, match="there is room for 0 B"):
        choose(64, device_memory=0)


def fake_machine(root: Path, *, available_kib: int, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


OF_PODS = {
    "pods/memory.max": "900000\n",
    "pods/memory.current": "850000\n",
    "pods/one/memory.max": "max\n",
    "pods/one/memory.current": "10\n",
}
LIMIT = {"memory.max": "1000000\n", "memory.current": "700000\n", "memory.stat": "anon 1\ninactive_file 200000\n"}
VERSION_ONE = {"memory/memory.limit_in_bytes": "800000\n", "memory/memory.usage_in_bytes": "300000\n"}


@pytest.mark.parametrize(
    ("cgroup", "files", "free"),
    [
        ("0::/\n", {"memory.max": "max\n"}, 5000 * KIB),
        ("0::/\n", LIMIT, 500_000),
        ("0::/pods/one\n", OF_PODS, 50_000),
        ("5:cpu,cpuacct:/x\n4:memory:/\n", VERSION_ONE, 500_000),
        ("0::/\n", {"memory.max": "10\n", "memory.current": "20\n"}, 0),
    ],
    ids=["no limit", "a limit, of which cache is free", "every enclosing group", "version one", "never negative"],
)
def test_free_memory_is_what_the_machine_and_its_groups_leave(
    tmp_path: Path, cgroup: str, files: dict[str, str], free: int
) -> None:
    assert free_memory(fake_machine(tmp_path, available_kib=5000, cgroup=cgroup, files=files)) == free


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20, "1 MiB"), (5 * 2**30, "5 GiB")]
)
def test_bytes_are_written_as_people_do(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_on_a_device_its_own_setting_is_named() -> None:
    """Raising the cache's alone would take what steps need."""
    with pytest.raises(KVCacheTooSmall, match="raise gpu-memory-utilization") as raised:
        choose(2048, max_model_len=2048, device_memory=16 * KIB)
    assert "kv-cache-memory" not in str(raised.value)
    with pytest.raises(KVCacheTooSmall, match="raise kv-cache-memory"):
        choose(2048, max_model_len=2048, device_memory=16 * KIB, kv_cache_memory=16 * KIB)
