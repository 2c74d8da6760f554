"""Every tinygrad internal that the backend uses, imported here and only here.

A tinygrad upgrade has this one module to look at: what is not importable as
`from tinygrad import ...` is re-exported from here to the rest of the engine.
"""

import tinygrad.codegen as codegen_module  # noqa: F401
import tinygrad.codegen.decomp.dtype as decomposition_module  # noqa: F401
import tinygrad.codegen.opt.heuristic as heuristic_module  # noqa: F401
import tinygrad.device as device_module  # noqa: F401
import tinygrad.dtype as dtype_module  # noqa: F401
import tinygrad.helpers as helpers_module  # noqa: F401
import tinygrad.runtime.ops_cpu as ops_cpu_module  # noqa: F401
import tinygrad.schedule.rangeify as rangeify_module  # noqa: F401
import tinygrad.tensor as tensor_module  # noqa: F401
import tinygrad.uop.ops as ops_module  # noqa: F401
from tinygrad import Device  # noqa: F401
from tinygrad import Tensor  # noqa: F401
from tinygrad.codegen import do_to_program  # noqa: F401
from tinygrad.codegen import to_program_cache  # noqa: F401
from tinygrad.codegen import to_program_config  # noqa: F401
from tinygrad.codegen import to_program_key  # noqa: F401
from tinygrad.codegen.opt import Opt  # noqa: F401
from tinygrad.codegen.opt import OptOps  # noqa: F401
from tinygrad.device import Buffer  # noqa: F401
from tinygrad.device import BufferSpec  # noqa: F401
from tinygrad.device import CompileError  # noqa: F401
from tinygrad.device import LRUAllocator  # noqa: F401
from tinygrad.device import TinyELF  # noqa: F401
from tinygrad.dtype import AddrSpace  # noqa: F401
from tinygrad.dtype import DType  # noqa: F401
from tinygrad.dtype import dtypes  # noqa: F401
from tinygrad.dtype import float_to_bf16  # noqa: F401
from tinygrad.dtype import strong_dtype  # noqa: F401
from tinygrad.engine.jit import GraphRunner  # noqa: F401
from tinygrad.engine.jit import graph_split_rewrite  # noqa: F401
from tinygrad.engine.realize import get_call_arg_uops  # noqa: F401
from tinygrad.engine.realize import get_runtime  # noqa: F401
from tinygrad.engine.realize import optimize_local_size  # noqa: F401
from tinygrad.engine.realize import run_linear  # noqa: F401
from tinygrad.engine.realize import runtime_cache  # noqa: F401
from tinygrad.helpers import BEAM  # noqa: F401
from tinygrad.helpers import JIT  # noqa: F401
from tinygrad.helpers import JIT_BATCH_SIZE  # noqa: F401
from tinygrad.helpers import LRU  # noqa: F401
from tinygrad.helpers import PARALLEL  # noqa: F401
from tinygrad.helpers import VIZ  # noqa: F401
from tinygrad.helpers import Context  # noqa: F401
from tinygrad.helpers import ContextVar  # noqa: F401
from tinygrad.helpers import GlobalCounters  # noqa: F401
from tinygrad.helpers import disable_gc  # noqa: F401
from tinygrad.helpers import getenv  # noqa: F401
from tinygrad.helpers import mv_address  # noqa: F401
from tinygrad.mixin.gradient import compute_gradient  # noqa: F401
from tinygrad.renderer import Estimates  # noqa: F401
from tinygrad.renderer.cstyle import ClangRenderer  # noqa: F401
from tinygrad.renderer.cstyle import CStyleLanguage  # noqa: F401
from tinygrad.renderer.llvmir import CPULLVMRenderer  # noqa: F401
from tinygrad.renderer.nir import LVPRenderer  # noqa: F401
from tinygrad.renderer.wgsl import WGSLRenderer  # noqa: F401
from tinygrad.runtime.ops_cpu import CPUAllocator  # noqa: F401
from tinygrad.runtime.ops_cpu import CPUProgram  # noqa: F401
from tinygrad.runtime.support.compiler_cpu import ClangCompiler  # noqa: F401, E501
from tinygrad.runtime.support.hcq import HCQBuffer  # noqa: F401
from tinygrad.runtime.support.hcq import MMIOInterface  # noqa: F401
from tinygrad.schedule import pm_copy_from_store  # noqa: F401
from tinygrad.schedule import pm_resolve_linear_call  # noqa: F401
from tinygrad.schedule import pm_schedule  # noqa: F401
from tinygrad.tensor import _apply_map_to_tensors as apply_map_to_tensors  # noqa: F401, E501
from tinygrad.tensor import all_tensors  # noqa: F401
from tinygrad.tensor import transform_to_call  # noqa: F401
from tinygrad.uop import GroupOp  # noqa: F401
from tinygrad.uop import Ops  # noqa: F401
from tinygrad.uop.ops import AxisType  # noqa: F401
from tinygrad.uop.ops import KernelInfo  # noqa: F401
from tinygrad.uop.ops import ParamArg  # noqa: F401
from tinygrad.uop.ops import PatternMatcher  # noqa: F401
from tinygrad.uop.ops import ProgramInfo  # noqa: F401
from tinygrad.uop.ops import UOp  # noqa: F401
from tinygrad.uop.ops import UPat  # noqa: F401
from tinygrad.uop.ops import buffers  # noqa: F401
from tinygrad.uop.ops import graph_rewrite  # noqa: F401
from tinygrad.uop.ops import identity_element  # noqa: F401
from tinygrad.uop.ops import recursive_property  # noqa: F401
from tinygrad.uop.ops import shape_to_shape_arg  # noqa: F401
from tinygrad.uop.symbolic import sym  # noqa: F401
