"""Everything that creates, renames or removes a file goes through here.

`folder` has the rules, `tree` files in folders of folders, `own` the user's own places, `new_file` files of commands.
"""

from flyweight.writing.folder import Folder, exchange, move, move_exclusive
from flyweight.writing.new_file import write_new
from flyweight.writing.own import is_temporary, own_cache, own_folder, own_state, signature
from flyweight.writing.tree import Content, Tree, content, remove_listed

__all__ = [
    "Content",
    "Folder",
    "Tree",
    "content",
    "exchange",
    "is_temporary",
    "move",
    "move_exclusive",
    "own_cache",
    "own_folder",
    "own_state",
    "remove_listed",
    "signature",
    "write_new",
]
