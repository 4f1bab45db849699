"""The forms in which model families write tool calls, one room a kind; ``engines.tool_calls`` is the door."""
