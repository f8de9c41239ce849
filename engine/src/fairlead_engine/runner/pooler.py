"""Vectors from hidden states: sums over the steps of a prompt, read at its end.

Knows the prompt of each hidden state, and the model's classifier; hidden states are computed elsewhere.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fairlead_engine.types import Pooling, Reading
from fairlead_engine.types.sequences import ScheduledSequence

_EMBEDDING_TYPE = "<f4"


class Pooler:
    """Keeps the sums of prompts computed in chunks, until `forget`."""

    def __init__(
        self,
        classifier: Callable[[Tensor], Tensor] | None = None,
        projection: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`classifier`: from vectors [rows, hidden] to float32 [rows, labels]. `projection`: of vectors of a model
        without labels, to float32 [rows, size]; None = they stay as they are."""
        self._classifier = classifier
        self._projection = projection
        self._sums: dict[str, Tensor] = {}

    def pool(self, items: Sequence[ScheduledSequence], hidden: Tensor) -> list[tuple[ScheduledSequence, Tensor]]:
        """Adds hidden states [rows, hidden], item by item. Returns items that `embed` with the result of their complete
        vectors: float32 [size of a vector], or [labels]. Sums are float32."""
        first = 0
        found: list[tuple[ScheduledSequence, Tensor]] = []
        for item in items:
            sequence, rows = item.sequence, hidden[first : first + len(item.pools)].float()
            first += len(item.pools)
            before = self._sums.get(sequence.request_id)
            if sequence.pooling is Pooling.MAX:
                total = rows.amax(0) if before is None else torch.maximum(before, rows.amax(0))
            else:
                total = rows.sum(0) if before is None else before + rows.sum(0)
            self._sums[sequence.request_id] = total
            if item.embeds:
                is_mean = sequence.pooling is Pooling.MEAN
                found.append((item, total / sequence.num_prompt_tokens if is_mean else total))
        return self._read(found)

    def _read(self, found: list[tuple[ScheduledSequence, Tensor]]) -> list[tuple[ScheduledSequence, Tensor]]:
        """The results of vectors. The classifier and the projection are called once for all."""
        if found and self._projection is not None:
            items, vectors = zip(*found, strict=True)
            found = list(zip(items, self._projection(torch.stack(vectors)), strict=True))
        labelled = [vector for item, vector in found if item.sequence.reading is Reading.LABELS]
        if not labelled:
            return [(item, _vector(item, vector)) for item, vector in found]
        assert self._classifier is not None, "labels are asked only of a model that has some"
        labels = iter(self._classifier(torch.stack(labelled)))
        return [
            (item, next(labels) if item.sequence.reading is Reading.LABELS else _vector(item, vector))
            for item, vector in found
        ]

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._sums.pop(request_id, None)


def write_vectors(vectors: Iterable[tuple[ScheduledSequence, Tensor]]) -> None:
    """Writes finite vectors on the host into their items."""
    for item, vector in vectors:
        if bool(vector.isfinite().all()):
            item.embedding = vector.numpy().astype(_EMBEDDING_TYPE).tobytes()


def _vector(item: ScheduledSequence, vector: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vector, dim=0) if item.sequence.reading is Reading.UNIT else vector
