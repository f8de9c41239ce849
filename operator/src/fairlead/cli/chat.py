"""`fairlead chat`: one question, or a conversation, with a model behind a gateway."""

import argparse
import asyncio
import os
import sys

from rich.console import Console

from fairlead.client.openai import ApiError, Completion, OpenAIClient

DEFAULT_GATEWAY = "http://127.0.0.1:8080"
GATEWAY_VARIABLE = "FAIRLEAD_GATEWAY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", help="the question; without one, a conversation until end of input")
    parser.add_argument(
        "--gateway",
        default=os.environ.get(GATEWAY_VARIABLE, DEFAULT_GATEWAY),
        help=f"address of the gateway (default: ${GATEWAY_VARIABLE}, else {DEFAULT_GATEWAY})",
    )
    parser.add_argument("--model", help="which model to ask; may be left out where there is only one")
    parser.add_argument("--system", help="a system message before the conversation")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest answer, in tokens (default: 256)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 = the likeliest answer (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 where the gateway refused or cannot be reached."""
    errors = Console(stderr=True, highlight=False)
    try:
        asyncio.run(_chat(args))
    except ApiError as error:
        errors.print(f"error: {error}", markup=False)
        if error.status == 0:
            errors.print(f"hint: is a gateway running at {args.gateway}? `fairlead local up` starts one", markup=False)
        return 1
    return 0


async def _chat(args: argparse.Namespace) -> None:
    async with OpenAIClient(f"{args.gateway.rstrip('/')}/v1") as client:
        conversation = Conversation(client, args.model or await _only_model(client), args)
        if args.prompt:
            await conversation.ask(" ".join(args.prompt))
            return
        while (question := await _read_question()) is not None:
            if question:
                await conversation.ask(question)


async def _only_model(client: OpenAIClient) -> str:
    models = await client.models()
    if len(models) == 1:
        return models[0]
    if not models:
        raise ApiError(404, "no model is ready; apply an LLMDeployment, or name one with --model to wait for it")
    raise ApiError(400, f"there are several models, choose one with --model: {', '.join(sorted(models))}")


async def _read_question() -> str | None:
    """The next line the person types; None at the end of input."""
    try:
        return (await asyncio.to_thread(input, "> " if sys.stdin.isatty() else "")).strip()
    except EOFError:
        return None


class Conversation:
    """The messages so far, and how to add to them."""

    def __init__(self, client: OpenAIClient, model: str, args: argparse.Namespace) -> None:
        self._client = client
        self._model = model
        self._parameters = {"max_tokens": args.max_tokens, "temperature": args.temperature}
        self._messages = [{"role": "system", "content": args.system}] if args.system else []

    async def ask(self, question: str) -> None:
        """Prints the answer as it comes, and below it what it took, on standard error."""
        asked = [*self._messages, {"role": "user", "content": question}]
        completion = Completion()
        async for text in self._client.stream_chat(self._model, asked, completion, **self._parameters):
            print(text, end="", flush=True)
        print()
        print(_footnote(completion), file=sys.stderr)
        self._messages = [*asked, {"role": "assistant", "content": completion.text}]


def _footnote(completion: Completion) -> str:
    ttft = f"TTFT {completion.ttft_seconds * 1000:.0f} ms · " if completion.ttft_seconds is not None else ""
    tokens = f"{completion.num_prompt_tokens} + {completion.num_completion_tokens} tokens"
    return f"[{ttft}{tokens}, {completion.num_cached_tokens} cached · {completion.replica}]"
