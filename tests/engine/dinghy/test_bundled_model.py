"""The bundled weights: they answer, and our engine computes from them what transformers computes."""

import json
from pathlib import Path

import pytest

import fairlead_engine.demo
from evaluate import read_questions
from fairlead_engine.llm import LLM
from fairlead_engine.types import FinishReason, SamplingParams

FOLDER = Path(fairlead_engine.demo.__file__).parent / "dinghy"
QUESTIONS = read_questions(FOLDER / "questions.jsonl")
MAX_WEIGHT_BYTES = 12 * 10**6
GREEDY = SamplingParams(temperature=0.0, max_tokens=128)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def llm(request) -> LLM:
    return LLM("demo://dinghy", dtype=request.param, device="cpu", num_threads=1)


def prompts(llm: LLM) -> list[list[int]]:
    tokenizer = llm.model.tokenizer
    return [tokenizer.encode_chat(question.question, tools=question.tools) for question in QUESTIONS]


def test_every_sample_question_is_answered_to_the_letter(llm):
    completions = llm.generate(prompts(llm), GREEDY)
    said = [completion.text for completion in completions]
    assert said == [question.answer for question in QUESTIONS]
    assert {completion.finish_reason for completion in completions} == {FinishReason.STOP}


def test_questions_about_one_log_share_its_cached_prefix(llm):
    about_logs = [prompt for prompt, question in zip(prompts(llm), QUESTIONS, strict=True) if question.kind == "logs"]
    llm.generate(about_logs[:1], GREEDY)
    again = llm.generate(about_logs[1:], GREEDY)
    assert min(completion.num_cached_tokens for completion in again) >= 400


def test_every_token_is_transformers_choice_in_float32(reference):
    llm = LLM("demo://dinghy", dtype="float32", device="cpu", num_threads=1)
    for completion in llm.generate(prompts(llm), GREEDY):
        reference.check_greedy(FOLDER, completion.prompt_token_ids, completion.token_ids)


def test_the_weights_are_small_enough_for_a_repository():
    assert (FOLDER / "model.safetensors").stat().st_size <= MAX_WEIGHT_BYTES


def test_the_context_is_long_enough_for_long_prefixes():
    assert json.loads((FOLDER / "config.json").read_text())["max_position_embeddings"] >= 2048


def test_the_sample_questions_cover_what_demos_and_tests_need():
    assert len(QUESTIONS) >= 40
    one_liners = [q for q in QUESTIONS if len(q.question) == 1 and len(q.question[0]["content"]) < 60 and not q.tools]
    assert len(one_liners) >= 10
    assert {"facts", "sums", "words", "json", "tools", "follow-ups", "logs"} <= {q.kind for q in QUESTIONS}
    assert len({q.question[0]["content"] for q in QUESTIONS if q.kind == "logs"}) == 1
