"""litellm, called by lines of JSON on stdin, answering by lines on stdout."""

import json
import sys
from typing import Any

import httpx
import litellm

litellm.suppress_debug_info = True


def completion_with_result(**fields: Any) -> Any:
    """What is answered to a result that is put into a streamed answer when it has made a call."""
    put_in = None
    for chunk in litellm.completion(**fields, stream=True):
        calls = [call for choice in chunk.choices for call in choice.delta.tool_calls or []]
        if calls and put_in is None:
            path = f"{fields['api_base']}/chat/completions/{chunk.id}/inject"
            result = {"model": "dinghy", "tool_call_id": calls[0].id, "content": "9"}
            put_in = httpx.post(path, json=result, timeout=60).json()
    return put_in


def answer_to(call: str, streamed: bool, fields: dict[str, Any]) -> Any:
    if call == completion_with_result.__name__:
        return completion_with_result(**fields)
    answer = getattr(litellm, call)(**fields, **({"stream": True} if streamed else {}))
    return [chunk.model_dump() for chunk in answer] if streamed else answer.model_dump()


for line in sys.stdin:
    order = json.loads(line)
    try:
        result = {"answer": answer_to(**order)}
    except litellm.exceptions.BadRequestError as error:
        result = {"refused": str(error)}
    print(json.dumps(result, default=str), flush=True)
