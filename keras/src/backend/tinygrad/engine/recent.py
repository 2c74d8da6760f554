"""Tables of what is costly to make: what was used last is kept."""

import collections

from keras.src.backend.tinygrad.engine.runtime_lock import lock

_tables = []


class Recent:
    """A table, made on demand, of the values of the keys used last.

    Args:
        capacity: Number of values kept.
    """

    def __init__(self, capacity):
        self._capacity = capacity
        self._values = collections.OrderedDict()
        _tables.append(self)

    def get(self, key, make):
        """Returns the value of a key.

        Args:
            key: Hashable.
            make: Function without arguments that makes the value, called if
                there is none.
        """
        with lock:
            if key not in self._values:
                # What is made may itself need values of this table.
                self._values[key] = make()
                if len(self._values) > self._capacity:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]

    def clear(self):
        """Forgets all values."""
        with lock:
            self._values.clear()

    def __contains__(self, key):
        return key in self._values

    def __len__(self):
        return len(self._values)


def clear():
    """Forgets the values of all tables."""
    for table in _tables:
        table.clear()
