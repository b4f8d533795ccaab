"""Horovod's source distribution, and the edits without which it does not compile or does not start alone and quietly.

Horovod 0.28.1, the newest release (2023), is published as source only and does not compile against today's frameworks.
"""

import hashlib
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


@dataclass(frozen=True)
class Edit:
    """One replacement in a file of the source distribution, and why."""

    file: str
    old: str
    new: str
    why: str


EDITS = (
    Edit(
        "setup.py",
        "require_list.append('cffi>=1.4.0')",
        "pass",
        "nothing in Horovod uses cffi any more, which setuptools would fetch from the network in the middle of a build",
    ),
    Edit(
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "the headers of PyTorch and TensorFlow are C++17 (upstream PR 3998)",
    ),
    Edit(
        "CMakeLists.txt",
        """\
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
""",
        """\
if(DEFINED ENV{HOROVOD_GPU})
    check_language(CUDA)
else()
    unset(CMAKE_CUDA_COMPILER)
endif()
if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{HOROVOD_GPU})
""",
        "a CUDA toolkit that is incomplete, or older than the C++ compiler, would end a build for the CPU",
    ),
    Edit(
        "horovod/torch/CMakeLists.txt",
        "    set(CMAKE_CXX_STANDARD 14)\n",
        """\
    if(Pytorch_VERSION VERSION_LESS "2.14")
        set(CMAKE_CXX_STANDARD 17)
    else()
        set(CMAKE_CXX_STANDARD 20)
    endif()
""",
        "the headers of PyTorch are C++17 (upstream PR 3998), since 2.14 C++20",
    ),
    Edit(
        "horovod/torch/cuda_util.cc",
        'dlopen("libcuda.so", RTLD_LAZY)',
        'dlopen("libcuda.so.1", RTLD_LAZY)',
        "every driver installs libcuda.so.1; the name without a number is for compiling, and missing in many images",
    ),
    Edit(
        "horovod/tensorflow/mpi_ops.cc",
        "GpuStreamHandle AsGpuStreamValue(Stream* stream);\n",
        """\
template <typename AnyStream>
inline GpuStreamHandle AsGpuStreamValue(AnyStream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
""",
        "no library of TensorFlow exports this function any more; a template is looked up after stream.h is included",
    ),
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        "# xla_mpi_ops.cc is left out",
        "the optional XLA operations include TensorFlow-internal headers that have moved",
    ),
    Edit(
        "horovod/common/common.h",
        "#include <memory>\n",
        "#include <memory>\n#include <stdexcept>\n",
        "gcc 14's other headers no longer bring it along",
    ),
    Edit(
        "horovod/common/group_table.h",
        "#include <queue>\n",
        "#include <queue>\n#include <string>\n",
        "gcc 14's other headers no longer bring it along",
    ),
    Edit(
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "const size_type count_;",
        "size_type count_;",
        "gcc 14 refuses a template that assigns to a constant, though nothing uses it",
    ),
    Edit(
        "horovod/common/basics.py",
        """\
            initialization_ok = self.MPI_LIB_CTYPES.horovod_init(
                (ctypes.c_int * comm_size)(*comm), ctypes.c_int(comm_size),
                *process_set_args_via_ranks)
""",
        """\
            from horovod.common.open_mpi_prefix import open_mpi_prefix
            with open_mpi_prefix():
                initialization_ok = self.MPI_LIB_CTYPES.horovod_init(
                    (ctypes.c_int * comm_size)(*comm), ctypes.c_int(comm_size),
                    *process_set_args_via_ranks)
""",
        "a script without a launcher would end in MPI_Init (see open_mpi_prefix.py)",
    ),
    Edit(
        "horovod/common/operations.cc",
        """\
#if HAVE_GLOO
#if HAVE_MPI
  if (global_mpi_context.IsEnabled()) {
    // Initialize gloo context if mpi context is available
""",
        """\
#if HAVE_GLOO
  try {
#if HAVE_MPI
  if (global_mpi_context.IsEnabled()) {
    // Initialize gloo context if mpi context is available
""",
        "a rank that ends before all have met would end the others by an exception that nobody catches",
    ),
    Edit(
        "horovod/common/operations.cc",
        """\
    // Initializes global controller
    state.process_set_table.Initialize(global_gloo_context);
  }
#endif // HAVE_GLOO
""",
        """\
    // Initializes global controller
    state.process_set_table.Initialize(global_gloo_context);
  }
  } catch (const std::exception& ex) {
    if (!GetBoolEnvOrDefault(HOROVOD_ELASTIC, false)) {
      LOG(ERROR) << "Horovod could not be initialized: " << ex.what();
    }
    global_gloo_context.Finalize();
    state.initialization_failed = true;
    return;
  }
#endif // HAVE_GLOO
""",
        "the same: `hvd.init()` raises an error, as it does for process sets that do not fit",
    ),
    Edit(
        "horovod/common/operations.cc",
        """\
    horovod_global.shut_down = false;
    horovod_global.initialization_done = false;
""",
        """\
    horovod_global.shut_down = false;
    horovod_global.initialization_done = false;
    horovod_global.initialization_failed = false;
""",
        "after a start that failed, the next one may succeed",
    ),
    Edit(
        "horovod/common/util.py",
        """\
            sys.stderr = open(os.devnull, 'w')
""",
        """\
            sys.stderr = open(os.devnull, 'w')
            os.dup2(sys.stderr.fileno(), 2)
""",
        "`horovodrun --check-build` asks processes that import TensorFlow; its C++ start-up lines bypass sys.stderr",
    ),
    Edit(
        "horovod/common/util.py",
        """\
    # 'fork' is required because horovodrun is a frozen executable
""",
        """\
    from pathlib import Path
    from horovod.common.build_features import MARKS, build_features
    feature = fn_desc.replace('built with ', '').lower()
    if feature in MARKS and not verbose:
        features = build_features(Path(__file__).parents[1], ext_base_name)
        return None if features is None else feature in features

    # 'fork' is required because horovodrun is a frozen executable
""",
        "horovodrun asks at every start whether MPI was built, and would import a framework for the answer: seconds",
    ),
    Edit(
        "horovod/runner/common/util/tiny_shell_exec.py",
        "from horovod.runner.common.util import safe_shell_exec\n",
        "import subprocess\n",
        "as below",
    ),
    Edit(
        "horovod/runner/common/util/tiny_shell_exec.py",
        """\
        exit_code = safe_shell_exec.execute(command, env=env, stdout=output, stderr=output)
""",
        """\
        done = subprocess.run(command, shell=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        exit_code = done.returncode
        output.write(done.stdout)
""",
        "`mpirun --version` needs no two further Pythons, which import all of horovodrun again: a second",
    ),
    Edit(
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable\n",
        "from shutil import which as find_executable\n",
        "distutils comes from setuptools by now, a third of horovodrun's imports, for one function",
    ),
    Edit(
        "horovod/common/tensor_queue.h",
        """\
  void RemoveJoinTensor();

protected:
""",
        """\
  void RemoveJoinTensor();

  // Sleep until a tensor is added to any queue, or until the longest time is over.
  static void WaitForTensors(std::chrono::milliseconds longest);

  bool HasTensors() const;

protected:
""",
        "as below",
    ),
    Edit(
        "horovod/common/tensor_queue.h",
        "#include <iostream>\n",
        "#include <chrono>\n#include <iostream>\n",
        "as below",
    ),
    Edit(
        "horovod/common/tensor_queue.cc",
        """\
// Add a TensorTableEntry as well as its message to the queue.
Status""",
        """\
namespace {
std::mutex added_mutex;
std::condition_variable added_condition;
bool added = false; // since messages were last popped

void SetAdded(bool value) {
  {
    std::lock_guard<std::mutex> guard(added_mutex);
    added = value;
  }
  added_condition.notify_one();
}
} // namespace

void TensorQueue::WaitForTensors(std::chrono::milliseconds longest) {
  std::unique_lock<std::mutex> lock(added_mutex);
  added_condition.wait_for(lock, longest, [] { return added; });
}

bool TensorQueue::HasTensors() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return !tensor_table_.empty();
}

// Add a TensorTableEntry as well as its message to the queue.
Status""",
        "as below",
    ),
    Edit(
        "horovod/common/tensor_queue.cc",
        "#include <assert.h>\n",
        "#include <assert.h>\n#include <condition_variable>\n",
        "as below",
    ),
    Edit(
        "horovod/common/tensor_queue.cc",
        """\
  message_queue_.push(std::move(message));
  return Status::OK();
}

Status""",
        """\
  message_queue_.push(std::move(message));
  SetAdded(true);
  return Status::OK();
}

Status""",
        "as below",
    ),
    Edit(
        "horovod/common/tensor_queue.cc",
        """\
    message_queue_.push(std::move(messages[i]));
  }
  return Status::OK();
""",
        """\
    message_queue_.push(std::move(messages[i]));
  }
  SetAdded(true);
  return Status::OK();
""",
        "as below",
    ),
    Edit(
        "horovod/common/tensor_queue.cc",
        """\
  std::lock_guard<std::mutex> guard(mutex_);
  while (!message_queue_.empty()) {
    Request&""",
        """\
  std::lock_guard<std::mutex> guard(mutex_);
  SetAdded(false);
  while (!message_queue_.empty()) {
    Request&""",
        "as below",
    ),
    Edit(
        "horovod/common/operations.cc",
        """\
  auto start_time = std::chrono::steady_clock::now();
  auto sleep_duration =""",
        """\
  static const int most_idle = GetIntEnvOrDefault("HOROVOD_TWINS_IDLE_MS", 0);
  if (most_idle > 0) {
    // A tensor that others have not announced yet must not wait here: they may be waiting for this rank already.
    bool has_tensors = false;
    for (auto id : state.process_set_table.Ids()) {
      has_tensors = has_tensors || state.process_set_table.Get(id).tensor_queue.HasTensors();
    }
    if (!has_tensors) {
      TensorQueue::WaitForTensors(std::chrono::milliseconds(most_idle));
    }
  }
  auto start_time = std::chrono::steady_clock::now();
  auto sleep_duration =""",
        "with HOROVOD_TWINS_IDLE_MS its thread sleeps while it holds no tensor, and does not look every cycle",
    ),
    Edit(
        "horovod/torch/handle_manager.h",
        """\
#include <atomic>
#include <memory>
""",
        """\
#include <atomic>
#include <condition_variable>
#include <memory>
""",
        "as below",
    ),
    Edit(
        "horovod/torch/handle_manager.h",
        """\
  bool PollHandle(int handle);
""",
        """\
  bool PollHandle(int handle);
  // Sleep until the operation is done, or the handle is cleared.
  void WaitForHandle(int handle);
""",
        "as below",
    ),
    Edit(
        "horovod/torch/handle_manager.h",
        """\
  std::mutex mutex_;
""",
        """\
  std::mutex mutex_;
  std::condition_variable changed_;
""",
        "as below",
    ),
    Edit(
        "horovod/torch/handle_manager.cc",
        """\
  results_[handle] = std::make_shared<Status>(status);
}
""",
        """\
  results_[handle] = std::make_shared<Status>(status);
  changed_.notify_all();
}

void HandleManager::WaitForHandle(int handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] {
    auto found = results_.find(handle);
    return found == results_.end() || found->second != nullptr;
  });
}
""",
        "as below",
    ),
    Edit(
        "horovod/torch/handle_manager.cc",
        """\
  results_.clear();
""",
        """\
  results_.clear();
  changed_.notify_all();
""",
        "as below",
    ),
    Edit(
        "horovod/torch/mpi_ops_v2.cc",
        """\
  while (true) {
    if (handle_manager.PollHandle(handle)) break;
    {
      py::gil_scoped_release release_python_gil;
      std::this_thread::yield();
    }
  }
  auto status = handle_manager.ReleaseHandle(handle);
""",
        """\
  {
    py::gil_scoped_release release_python_gil;
    handle_manager.WaitForHandle(handle);
  }
  auto status = handle_manager.ReleaseHandle(handle);
""",
        "PyTorch sleeps until its averages are there: it spun, in time that Horovod's thread needs",
    ),
)
# Files of this folder -> where they are added to the source distribution.
ADDED = {name: f"horovod/common/{name}" for name in ("build_features.py", "open_mpi_prefix.py")}


def unpack(sdist: Path, folder: Path) -> Path:
    """Check the source distribution, unpack it into an emptied folder and apply the edits; return the source folder."""
    received = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if received != SDIST_SHA256:
        raise UserError(f"{sdist} is damaged or another file. Expected SHA-256 {SDIST_SHA256}. Received: {received}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)  # as it was published: the checksum says so
    source = folder / f"horovod-{VERSION}"
    apply_edits(source)
    return source


def apply_edits(source: Path) -> None:
    """Apply the edits. Each must find its text exactly once: an edit that misses would build something else."""
    for edit in EDITS:
        path = source / edit.file
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise RuntimeError(f"{edit.file}: {edit.old!r} occurs {text.count(edit.old)} times, expected once")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    for name, target in ADDED.items():
        shutil.copyfile(Path(__file__).parent / name, source / target)
