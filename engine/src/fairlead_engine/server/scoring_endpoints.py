"""`POST /v1/rerank`, `/v1/score`, `/v1/classify`: what a classifier says of prompts, or how alike their vectors are.

Replies are vLLM's; those to `/v1/rerank` are also Jina's and Cohere's. A cross-encoder reads each pair as one prompt
and has one label, which is the score; a model that makes vectors reads each text once, and the score is their cosine.
"""

from operator import mul
from typing import Any, TypeVar

from fairlead_engine.server.prompts import classify_fields, pair_fields
from fairlead_engine.server.reading_endpoint import ReadingEndpoint, vector_of
from fairlead_engine.server.schemas import ClassifyRequest, RerankRequest, ScoreRequest
from fairlead_engine.server.served_model import ServedModel
from fairlead_engine.types import Kind, Pooling, Reading
from fairlead_protocol.prompts import PairPrompts, PromptFields

Comparing = TypeVar("Comparing", RerankRequest, ScoreRequest)


class ComparingEndpoint(ReadingEndpoint[Comparing]):
    """What ranking and scoring have in common."""

    kind = Kind.SCORE

    def pooling(self, request: Comparing, model: ServedModel) -> Pooling:
        return model.info.task.pooling

    def reading(self, model: ServedModel) -> Reading:
        return Reading.LABELS if model.info.task.joins_pairs else Reading.UNIT

    def fields(self, request: Comparing, model: ServedModel) -> PromptFields:
        return pair_fields(request, model)


class RerankEndpoint(ComparingEndpoint[RerankRequest]):
    """`POST /v1/rerank`."""

    schema = RerankRequest

    def told(self, request: RerankRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        compared = request.compared
        scores = pair_scores(compared, [*map(vector_of, vectors)], joins_pairs=model.info.task.joins_pairs)
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: request.top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if request.return_documents is not False:
            texts = compared.sides()[1].texts
            for result in results:
                result["document"] = {"text": texts[result["index"]]}
        return {"results": results}


class ScoreEndpoint(ComparingEndpoint[ScoreRequest]):
    """`POST /v1/score`."""

    schema = ScoreRequest

    def told(self, request: ScoreRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        scores = pair_scores(request.compared, [*map(vector_of, vectors)], joins_pairs=model.info.task.joins_pairs)
        data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)]
        return {"object": "list", "data": data}


class ClassifyEndpoint(ReadingEndpoint[ClassifyRequest]):
    """`POST /v1/classify`."""

    schema = ClassifyRequest
    kind = Kind.CLASSIFY

    def pooling(self, request: ClassifyRequest, model: ServedModel) -> Pooling:
        return model.info.task.pooling

    def reading(self, model: ServedModel) -> Reading:
        return Reading.LABELS

    def fields(self, request: ClassifyRequest, model: ServedModel) -> PromptFields:
        return classify_fields(request, model)

    def told(self, request: ClassifyRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        labels, data = model.info.task.labels, []
        for index, vector in enumerate(vectors):
            probs = vector_of(vector)
            likeliest = max(range(len(labels)), key=probs.__getitem__)
            data.append({"index": index, "label": labels[likeliest], "probs": probs, "num_classes": len(labels)})
        return {"object": "list", "data": data}


def pair_scores(compared: PairPrompts, numbers: list[list[float]], *, joins_pairs: bool) -> list[float]:
    """The score of each pair, of what was read off the prompts that `compared` has for such a model: a label's number,
    or vectors of length 1."""
    if joins_pairs:
        return [score for (score,) in numbers]
    num_first = len(compared.sides()[0].texts)
    return [sum(map(mul, numbers[one], numbers[num_first + other])) for one, other in compared.pairs()]
