"""Walks a table of CPU launches in one foreign call.

A row of the table is the address of a kernel, the width of the row, and the
arguments, padded to the width. Between two launches there is no Python, and
the interpreter lock is free from the first to the last.

Rows that follow each other may be shards of one launch: then the first one's
width has their number in its upper half. Shards run side by side on the
threads of the pool (see `threads`), which claim them one by one: a thread
that the system holds up leaves its share to the others.

A launch that fails sets `stopped`, and the launches after it are left out.
"""

import ctypes
import functools
import sys

from keras.src.backend.tinygrad.engine import program_cache
from keras.src.backend.tinygrad.engine import threads
from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import CPUProgram
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import TinyELF
from keras.src.backend.tinygrad.engine.runtime_lock import lock

# A row is as wide as the first of these that holds its arguments.
WIDTHS = (6, 12, 24, 64, 256)
# What precedes the arguments: the kernel's address and the width.
HEADER = 2

# Not 0: the walk in progress ends with the launch in progress.
stopped = ctypes.c_uint64()

_ROW = """    case {width}:
      ((FN(*)({types}))row[0])({values});
      break;
"""
_SOURCE = """typedef unsigned long long u64;
#define FN {abi}void
#define INLINE static inline __attribute__((always_inline))
#define GET(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)
#define SET(place, value) __atomic_store_n(&(place), value, __ATOMIC_SEQ_CST)
#define ADD(place, value) __atomic_fetch_add(&(place), value, __ATOMIC_SEQ_CST)
#if defined(__x86_64__)
#define PAUSE __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE __asm__ volatile("yield")
#else
#define PAUSE (void)0
#endif

typedef struct {{
{fields}}} Pool;

INLINE void call(u64 *row) {{
  switch (row[1] & 0xffffffff) {{
{rows}  }}
}}

INLINE void call_c(u64 function, u64 first, u64 second) {{
  ((int(*)(u64, u64))function)(first, second);
}}

INLINE void claim(Pool *pool) {{
  u64 count = pool->count, stride = pool->stride, i;
  u64 *row = (u64 *)pool->row;
  while ((i = ADD(pool->next, 1)) < count) call(row + i * stride);
}}

/* A thread of the pool. `open` is the number of the job in progress, or 0.
   Who has counted itself as active and then still finds the job open may
   claim shards of it: it is not over before nobody is active. */
INLINE void work(Pool *pool) {{
  u64 seen = 0, idle = 0;
  for (;;) {{
    u64 job = GET(pool->open);
    if (job && job != seen) {{
      ADD(pool->active, 1);
      if (GET(pool->open) == job) claim(pool);
      ADD(pool->active, -1);
      seen = job;
      idle = 0;
    }} else if (idle < pool->spins) {{
      idle++;
      PAUSE;
    }} else {{
      call_c(pool->lock, pool->mutex, 0);
      ADD(pool->asleep, 1);
      while (!(job = GET(pool->open)) || job == seen)
        call_c(pool->wait, pool->condition, pool->mutex);
      ADD(pool->asleep, -1);
      call_c(pool->unlock, pool->mutex, 0);
      idle = 0;
    }}
  }}
}}

INLINE void share(Pool *pool, u64 *row, u64 count, u64 stride) {{
  u64 turns = 0;
  pool->row = (u64)row;
  pool->count = count;
  pool->stride = stride;
  SET(pool->next, 0);
  SET(pool->open, ++pool->jobs);
  if (GET(pool->asleep)) {{
    call_c(pool->lock, pool->mutex, 0);
    call_c(pool->wake, pool->condition, 0);
    call_c(pool->unlock, pool->mutex, 0);
  }}
  claim(pool);
  SET(pool->open, 0);
  while (GET(pool->active)) {{
    PAUSE;
    /* On the same core, perhaps. */
    if (++turns > 4096) call_c(pool->yield, 0, 0);
  }}
}}

{abi}void *keras_replay(u64 *row, Pool *pool, u64 *stopped) {{
  if (row[0] == {work}) work((Pool *)row[1]);
  /* Another walk may have it: one that this one is inside of. */
  if (pool && __atomic_exchange_n(&pool->taken, 1, __ATOMIC_SEQ_CST)) pool = 0;
  while (row[0] && !GET(*stopped)) {{
    u64 count = row[1] >> 32, stride = {header} + (row[1] & 0xffffffff);
    if (count > 1 && pool) {{
      share(pool, row, count, stride);
      row += count * stride;
    }} else {{
      call(row);
      row += stride;
    }}
  }}
  if (pool) SET(pool->taken, 0);
  return 0;
}}
"""


def width_of(count):
    """Returns the width of a row with `count` arguments."""
    return next(width for width in WIDTHS if count <= width)


def grouped(width, count):
    """Returns what the first of `count` shards has as its width."""
    return width | count << 32


@functools.cache
def _walker():
    """The compiled walk, or `None` where no C compiler is at hand."""
    device = Device["CPU"]
    if not isinstance(device.renderer, ClangRenderer):
        return None
    abi = "__attribute__((ms_abi)) " if sys.platform == "win32" else ""
    rows = "".join(
        _ROW.format(
            width=width,
            types=", ".join(["u64"] * width),
            values=", ".join(f"row[{HEADER + i}]" for i in range(width)),
        )
        for width in WIDTHS
    )
    source = _SOURCE.format(
        abi=abi,
        rows=rows,
        header=HEADER,
        fields=threads.Pool.c_fields(),
        work=threads.WORK,
    )
    key = (program_cache.fingerprint("CPU") + source).encode()
    binary = program_cache.load("launcher", key)
    if binary is None:
        binary = device.renderer.compiler.compile(source)
        program_cache.store("launcher", key, binary)
    elf = TinyELF(binary, "keras_replay", device.renderer.target, ())
    program = CPUProgram(device, elf)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
    return program, kind(program.addr)


def shares():
    """Whether shards run side by side in this process."""
    if threads.count() == 1:
        return False
    with lock:
        return _walker() is not None


def walk(table, functions, alone=False):
    """Runs the launches of a table.

    Args:
        table: ctypes array of `c_uint64`; the row after the last begins
            with zero.
        functions: List of `(ctypes function, position of its row, number of
            arguments)`, for where the table can't be walked in C.
        alone: Whether shards run one after another.
    """
    walker = _walker()
    if walker is None:
        for function in functions:
            if stopped.value:
                return
            walk_row(table, *function)
        return
    program, function = walker
    pool = None if alone else threads.pool(program)
    function(ctypes.addressof(table), pool, ctypes.addressof(stopped))


def walk_row(table, function, position, count):
    """Runs one launch of a table; see `walk`."""
    first = position + HEADER
    function(*map(ctypes.c_uint64, table[first : first + count]))
