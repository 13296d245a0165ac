"""The prompt for a context: what stays the same for all chunks of a segment comes first, so that it is cached.

The wording is the published one of Contextual Retrieval
(https://www.anthropic.com/news/contextual-retrieval), with a header that names the document.
"""

from __future__ import annotations

import re

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.errors import ConfigurationError

DEFAULT_PROMPT = """\
<document>
{header}

{segment}
</document>
Here is the chunk we want to situate within the whole document
<chunk>
{chunk}
</chunk>
Please give a short succinct context to situate this chunk within the overall document for the purposes of improving \
search retrieval of the chunk. Answer only with the succinct context and nothing else."""

_PUBLISHED_NAMES = {"{{WHOLE_DOCUMENT}}": "{segment}", "{{CHUNK_CONTENT}}": "{chunk}"}
_VARIABLE = re.compile(r"\{(header|segment|chunk)\}")
_ANY_VARIABLE = re.compile(r"\{([A-Za-z_]\w*)\}")
_OUR_TAGS = re.compile(r"<(\s*/?\s*(?:document|chunk)\b)", re.IGNORECASE)


def check_template(template: str) -> str:
    """Return a prompt template with our variables; the published names are accepted.

    Raises:
        ConfigurationError: A variable is missing, unknown, or the chunk comes before the segment.
    """
    for published, ours in _PUBLISHED_NAMES.items():
        template = template.replace(published, ours)
    names = _ANY_VARIABLE.findall(template)
    if unknown := sorted(set(names) - {"header", "segment", "chunk"}):
        raise _refused(f"{{{unknown[0]}}} is no variable: use {{header}}, {{segment}} and {{chunk}}")
    if "chunk" not in names or "segment" not in names:
        raise _refused("it needs both {segment} and {chunk}")
    if names.index("chunk") < max(at for at, name in enumerate(names) if name != "chunk"):
        raise _refused("{chunk} must come after {header} and {segment}, so that the provider can cache what they share")
    return template


def _refused(reason: str) -> ConfigurationError:
    return ConfigurationError(f"The context prompt cannot be used: {reason}.", setting="context_prompt")


def header(segment: Segment) -> str:
    """Return what names the document: title or file name, its opening, the segment's section path."""
    lines = [f"Title: {segment.title}" if segment.title else ""]
    if segment.opening and not segment.begins_document:
        lines.append(f"The document begins: {segment.opening}")
    if segment.section:
        lines.append(f"Section: {segment.section}")
    return "\n".join(line for line in lines if line)


def fill(template: str, segment: Segment, chunk: BaseNode) -> str:
    """Return the prompt for one chunk; what comes before {chunk} is the same for all chunks of the segment.

    Text of the document cannot close the tags around it.
    """
    section = chunk.metadata.get(keys.SECTION)
    text = chunk.get_content()
    values = {
        "header": header(segment),
        "segment": segment.text,
        "chunk": f"[Section: {section}]\n{text}" if section else text,
    }
    return _VARIABLE.sub(lambda match: neutralise(values[match[1]]), template).strip()


def neutralise(text: str) -> str:
    """Return the text with `<document>` and `<chunk>` tags made harmless."""
    return _OUR_TAGS.sub(r"‹\1", text)
