"""`fairlead chat`: one question, or a conversation, with a model behind a gateway."""

import argparse
import asyncio
import signal
import sys

from fairlead.cli.options import (
    UsageError,
    add_gateway,
    api_key,
    at_least,
    base_url,
    chosen_model,
    console_for_words,
    number,
    tell,
    text,
    utf8,
)
from fairlead.cli.report_table import short
from fairlead.client.openai import ChatAnswer, OpenAIClient, RequestFailed

FROM_INPUT = "-"
COMMANDS = "/clear forgets the conversation, /? shows this, Ctrl-D leaves."
"""What a person at a terminal may type beside questions."""
PATIENCE_SECONDS = 2.0
"""Without a token for so long, the reason is printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        nargs="*",
        help="the question; - = all of standard input; none = a conversation, line by line until end of input",
    )
    add_gateway(parser)
    parser.add_argument("--system", type=text, help="a system message before the conversation")
    parser.add_argument(
        "--max-tokens", type=at_least(1), help="longest answer, in tokens (default: what fits the context)"
    )
    parser.add_argument(
        "--temperature",
        type=number(lambda given: 0 <= given <= 100, "is not a number from 0 to 100"),
        default=0.0,
        help="0 = the likeliest answer (default: 0)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say what each answer took: times, tokens, cache, replica"
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 where a question was not answered. Answers go to standard output, all else to standard error."""
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # so that `utf8` can say what is wrong
    try:
        return asyncio.run(_chat(args))
    except UsageError as error:
        tell(error)
        return 2
    except RequestFailed as error:
        tell(error, args.gateway)
        return 1


async def _chat(args: argparse.Namespace) -> int:
    """A person at a terminal may try again after an error; a script hears of it at once."""
    async with OpenAIClient(base_url(args.gateway), api_key=api_key()) as client:
        conversation = ChatSession(client, await chosen_model(client, args.model), args)
        if args.prompt:
            asked = sys.stdin.read() if args.prompt == [FROM_INPUT] else " ".join(args.prompt)
            await conversation.ask(utf8(asked, "the question").strip())
            return 0
        is_terminal, status = sys.stdin.isatty(), 0
        if is_terminal:
            _note(f"{conversation.model}: write a question. {COMMANDS}")
        while line := await _line_of_a_person() if is_terminal else sys.stdin.readline():
            if is_terminal and line.strip() in ("/?", "/help", "/clear"):
                if line.strip() == "/clear":
                    conversation.clear()
                _note(COMMANDS)
                continue
            if not line.strip():
                continue
            try:
                await conversation.ask(utf8(line, "the question").strip())
                status = 0
            except (RequestFailed, UsageError) as error:
                if not is_terminal:
                    raise
                tell(error, args.gateway)
                status = 1
        return status


async def _line_of_a_person() -> str:
    """The next line typed at the terminal; empty at the end of input. Waits in the event loop, where Ctrl-C is never
    missed: a signal just before a blocking read would show only after the next line."""
    print("> ", end="", file=sys.stderr, flush=True)
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    handler = signal.getsignal(signal.SIGINT)
    task = asyncio.current_task()
    assert task is not None
    loop.add_reader(sys.stdin, typed.set)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await typed.wait()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        loop.remove_reader(sys.stdin)
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, handler)
    return sys.stdin.readline()  # a terminal gives whole lines


class ChatSession:
    """The messages so far; asks further questions."""

    def __init__(self, client: OpenAIClient, model: str, args: argparse.Namespace) -> None:
        self._client = client
        self.model = model
        self._verbose = args.verbose
        self._parameters = {"temperature": args.temperature}
        if args.max_tokens is not None:  # a limit that one chooses must fit the context, to the end of a conversation
            self._parameters["max_tokens"] = args.max_tokens
        self._first = [{"role": "system", "content": args.system}] if args.system else []
        self.clear()

    def clear(self) -> None:
        """Forgets all messages but the system's."""
        self._messages = list(self._first)

    async def ask(self, question: str) -> None:
        """Prints the answer as it comes. A question without an answer leaves no trace in the conversation."""
        asked = [*self._messages, {"role": "user", "content": question}]
        completion = ChatAnswer()
        waiting = asyncio.create_task(self._tell_waiting())
        try:
            async for piece in self._client.stream_chat(self.model, asked, completion, **self._parameters):
                waiting.cancel()
                print(piece, end="", flush=True)
        finally:
            waiting.cancel()
            if completion.text or completion.finish_reason:
                print(flush=True)
        if self._verbose:
            _note(footnote(completion))
        self._messages = [*asked, {"role": "assistant", "content": completion.text}]

    async def _tell_waiting(self) -> None:
        """Prints why the first token is late, and again when the reason changes."""
        said = ""
        while True:
            await asyncio.sleep(PATIENCE_SECONDS)
            why = f"for a first token; {self.model} has just started, has a lot to do, or reads a long prompt"
            try:
                listed = (await self._client.models()).get(self.model)
                if listed is None or not listed.is_ready:
                    how_far = "`kubectl describe llm` says how far the first one is"
                    why = f"no replica of {self.model} is ready yet; {how_far}"
            except RequestFailed as error:
                why = f"for a first token; {error}"
            if why != said:
                _note(f"waiting: {why}")
                said = why


def _note(words: str) -> None:
    console_for_words(stderr=True).print(words, markup=False)


def footnote(completion: ChatAnswer) -> str:
    """What an answer took, in one line."""
    words = []
    if completion.ttft_seconds is not None:
        foreseen = completion.predicted_ttft_seconds
        predicted = f" (predicted {short(foreseen)})" if foreseen is not None else ""
        words.append(f"TTFT {short(completion.ttft_seconds)}{predicted}")
    if completion.tpot_seconds is not None:
        words.append(f"{short(completion.tpot_seconds)} per token")
    words.append(f"{completion.num_prompt_tokens} + {completion.num_completion_tokens} tokens")
    words.append(f"{completion.num_cached_tokens} cached")
    if completion.replica:
        words.append(completion.replica)
    return f"[{' · '.join(words)}]"
