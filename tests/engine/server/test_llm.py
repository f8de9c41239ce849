"""`LLM`: a model in this process, with the same text handling as behind HTTP."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead_engine import LLM, SamplingParams
from fairlead_engine.demo import known_demos, resolve_model
from fairlead_engine.errors import AdapterError, ModelLoadError, RequestError
from fairlead_engine.types import FinishReason
from fairlead_engine_testing.adapters import write_random_adapter

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    return LLM(str(checkpoint), kv_cache_memory=2**24, num_threads=1, max_num_queued_tokens=32, max_num_seqs=4)


def test_prompts_may_be_text_or_ids_and_answers_come_in_order(llm: LLM) -> None:
    texts = ["the quick", "one two three", "é"]
    by_text = llm.generate(texts, GREEDY)
    by_ids = llm.generate([llm.model.tokenizer.encode(text) for text in reversed(texts)], GREEDY)
    assert [each.token_ids for each in by_text] == [each.token_ids for each in reversed(by_ids)]
    assert [each.prompt_token_ids for each in by_text] == [llm.model.tokenizer.encode(text) for text in texts]
    assert all(len(each.token_ids) == 12 and each.finish_reason is FinishReason.LENGTH for each in by_text)


def test_one_prompt_needs_no_list(llm: LLM) -> None:
    [by_text] = llm.generate("the quick", GREEDY)
    [by_ids] = llm.generate(llm.model.tokenizer.encode("the quick"), GREEDY)
    assert by_text.text == by_ids.text


def test_more_prompts_than_the_queue_holds_all_get_an_answer(llm: LLM) -> None:
    completions = llm.generate([[40 + index] * 20 for index in range(30)], GREEDY)
    assert len(completions) == 30
    assert all(completion.finish_reason is FinishReason.LENGTH for completion in completions)
    assert not llm.engine.has_work()
    llm.engine.check()


def test_a_stop_string_ends_the_text_and_frees_the_engine(llm: LLM) -> None:
    [whole] = llm.generate("the quick", GREEDY)
    middle = whole.text[len(whole.text) // 2 :][:1]
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(middle,))
    [cut] = llm.generate("the quick", sampling)
    assert cut.text == whole.text[: whole.text.index(middle)]
    assert cut.finish_reason is FinishReason.STOP
    assert not llm.engine.has_work()
    llm.engine.check()


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    short = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=1)
    first, second = llm.generate(["a", "b"], [GREEDY, short])
    assert (len(first.token_ids), len(second.token_ids)) == (12, 3)
    assert (len(first.logprobs), len(second.logprobs)) == (0, 3)
    with pytest.raises(RequestError, match="2 prompts but 1"):
        llm.generate(["a", "b"], [GREEDY])


def test_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "ahoy"}]
    completion = llm.chat(messages, GREEDY)
    assert completion.prompt_token_ids == llm.model.tokenizer.encode_chat(messages)


def test_wrong_prompts_are_refused_and_leave_nothing_behind(llm: LLM) -> None:
    for wrong in ("", [10**6], [1] * 5000):
        with pytest.raises(RequestError):
            llm.generate(["fine", wrong], GREEDY)  # type: ignore[list-item]
    assert not llm.engine.has_work()


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    for source in (str(tmp_path), str(tmp_path / "nowhere"), "demo://nothing", "hf://org/name"):
        with pytest.raises(ModelLoadError) as caught:
            resolve_model(source)
        assert caught.value.reason == "ModelNotFound"
    for demo in known_demos():
        assert (resolve_model(f"demo://{demo}") / "config.json").is_file()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads can be bound on Linux only")
def test_the_thread_of_a_program_keeps_its_cores(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was given some of a machine's, too."""

    def cores_after() -> set[int]:
        LLM(str(checkpoint), kv_cache_memory=2**24, num_threads=1)
        return os.sched_getaffinity(0)

    monkeypatch.setattr(os, "cpu_count", lambda: 10**6)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cores_after).result() == os.sched_getaffinity(0)


def test_adapters_are_loaded_asked_for_and_unloaded(checkpoint: Path, tmp_path: Path) -> None:
    llm = LLM(str(checkpoint), kv_cache_memory=2**24, num_threads=1, max_loras=1, max_num_seqs=4)
    for seed, name in enumerate(("pirate", "poet")):
        llm.load_adapter(name, write_random_adapter(tmp_path / name, checkpoint, seed=seed))
    pirate, plain, poet = llm.generate(["the quick"] * 3, GREEDY, adapter=["pirate", None, "poet"])
    assert len({tuple(each.token_ids) for each in (pirate, plain, poet)}) == 3
    assert llm.generate("the quick", GREEDY)[0].token_ids == plain.token_ids
    assert llm.generate("the quick", GREEDY, adapter="poet")[0].token_ids == poet.token_ids
    llm.unload_adapter("poet")
    with pytest.raises(RequestError, match="no adapter 'poet'; it has 'pirate'"):
        llm.generate("the quick", GREEDY, adapter="poet")
    with pytest.raises(RequestError, match="1 prompts but 2 adapters"):
        llm.generate("the quick", GREEDY, adapter=["pirate", None])
    with pytest.raises(AdapterError, match=r"nowhere.adapter_config.json cannot be read"):
        llm.load_adapter("x", tmp_path / "nowhere")
