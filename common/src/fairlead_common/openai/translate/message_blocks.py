"""Blocks of a message's content in Anthropic's Messages API."""

from typing import Any, Literal

import msgspec


class CacheControl(msgspec.Struct, frozen=True, kw_only=True):
    """A breakpoint: the prompt up to here shall stay in the cache."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """None = 5 minutes."""


class _Cacheable(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, frozen=True, kw_only=True):
    cache_control: CacheControl | None = None


class TextBlock(_Cacheable, tag="text", frozen=True, kw_only=True):
    """A text."""

    text: str
    citations: list[Any] | None = None
    """Sources of an earlier answer. No effect."""


class Base64Source(msgspec.Struct, tag_field="type", tag="base64", forbid_unknown_fields=True, frozen=True):
    """An image's bytes."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    @property
    def image_url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class URLSource(msgspec.Struct, tag_field="type", tag="url", forbid_unknown_fields=True, frozen=True):
    """The place of an image."""

    url: str

    @property
    def image_url(self) -> str:
        return self.url


class ImageBlock(_Cacheable, tag="image", frozen=True, kw_only=True):
    """An image."""

    source: Base64Source | URLSource


class TextSource(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True, frozen=True):
    """A document's text."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentSource(msgspec.Struct, tag_field="type", tag="content", forbid_unknown_fields=True, frozen=True):
    """A document in blocks."""

    content: str | list[TextBlock | ImageBlock]


class BytesSource(msgspec.Struct, tag_field="type", tag="base64", frozen=True):
    """A document's bytes, such as a PDF's, which cannot be read as text."""


class DocumentBlock(_Cacheable, tag="document", frozen=True, kw_only=True):
    """A document. Files, and places of documents, cannot be read."""

    source: TextSource | ContentSource | BytesSource
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None


class SearchResultBlock(_Cacheable, tag="search_result", frozen=True, kw_only=True):
    """A passage found by a search, with its source."""

    source: str
    title: str
    content: list[TextBlock]
    citations: dict[str, Any] | None = None


class ToolUseBlock(_Cacheable, tag="tool_use", frozen=True, kw_only=True):
    """A tool call of the model."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None
    """The model, or a program of the model at another server. No effect."""


class ToolReferenceBlock(_Cacheable, tag="tool_reference", frozen=True, kw_only=True):
    """A tool found by a search. The model sees all tools, and is told the name."""

    tool_name: str


class ToolResultBlock(_Cacheable, tag="tool_result", frozen=True, kw_only=True):
    """The result of a call."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(_Cacheable, tag="thinking", frozen=True, kw_only=True):
    """The reasoning of an earlier answer; the model's chat template decides whether it is read again."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Cacheable, tag="redacted_thinking", frozen=True, kw_only=True):
    """Reasoning that only Anthropic can read. No effect."""

    data: str


class CompactionBlock(_Cacheable, tag="compaction", frozen=True, kw_only=True):
    """A summary in place of all earlier messages."""

    content: str | None = None
    """None = there is no summary."""
    encrypted_content: Any = None
    signature: Any = None
    tool_changes: Any = None


class ToolChange(msgspec.Struct, frozen=True):
    """A tool among the request's tools."""

    type: Literal["tool_reference", "mcp_tool_reference", "mcp_toolset_reference"]


class ToolAdditionBlock(_Cacheable, tag="tool_addition", frozen=True, kw_only=True):
    """From here on the model has a tool. No effect, as models see all tools from the beginning."""

    tool: ToolChange


class ToolRemovalBlock(_Cacheable, tag="tool_removal", frozen=True, kw_only=True):
    """From here on the model lacks a tool. No effect: a prompt without the tool would share no prefix with the last."""

    tool: ToolChange


TOOL_CHANGES = ToolAdditionBlock | ToolRemovalBlock


class _ServersBlock(msgspec.Struct, tag_field="type", frozen=True):
    """Input or result of a server's own tool. No effect: the next answer tells the result."""


class ServerToolUseBlock(_ServersBlock, tag="server_tool_use", frozen=True):
    """A call of a server's own tool."""


class WebSearchResultBlock(_ServersBlock, tag="web_search_tool_result", frozen=True):
    """Found by a search."""


class WebFetchResultBlock(_ServersBlock, tag="web_fetch_tool_result", frozen=True):
    """A page."""


class CodeResultBlock(_ServersBlock, tag="code_execution_tool_result", frozen=True):
    """Output of a program."""


class BashResultBlock(_ServersBlock, tag="bash_code_execution_tool_result", frozen=True):
    """Output of a command."""


class EditorResultBlock(_ServersBlock, tag="text_editor_code_execution_tool_result", frozen=True):
    """Result of an editor."""


class ToolSearchResultBlock(_ServersBlock, tag="tool_search_tool_result", frozen=True):
    """Names of tools."""


class AdvisorResultBlock(_ServersBlock, tag="advisor_tool_result", frozen=True):
    """Advice of another model."""


class FallbackBlock(_ServersBlock, tag="fallback", frozen=True):
    """Where another model went on."""


class MCPToolListingBlock(_ServersBlock, tag="mcp_tool_listing", frozen=True):
    """The tools of an MCP server."""


class MCPToolUseBlock(_ServersBlock, tag="mcp_tool_use", frozen=True):
    """A call of a tool of an MCP server."""


class MCPToolResultBlock(_ServersBlock, tag="mcp_tool_result", frozen=True):
    """The result of an MCP server's tool."""


SERVERS_BLOCKS = (
    ServerToolUseBlock
    | WebSearchResultBlock
    | WebFetchResultBlock
    | CodeResultBlock
    | BashResultBlock
    | EditorResultBlock
    | ToolSearchResultBlock
    | AdvisorResultBlock
    | FallbackBlock
    | MCPToolListingBlock
    | MCPToolUseBlock
    | MCPToolResultBlock
)
"""Of earlier answers of a server that runs tools by itself."""
