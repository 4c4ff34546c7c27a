/* ranks_cuda.cu - see ranks.h. NCCL is loaded when ranks are joined, so nothing else needs it, and no build looks for it. */
#include "ranks.h"

#include "../host/errors.h"
#include "../host/meeting.h"
#include "cuda_check.h"
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

/* What we use of nccl.h, version 2. */
struct NcclId {
    char bytes[128];
};
typedef struct NcclComm *Communicator;
enum { NCCL_INT8 = 0, NCCL_FLOAT64 = 8, NCCL_MAX = 2 };
static struct {
    const char *(*GetErrorString)(int);
    int (*GetUniqueId)(NcclId *);
    int (*CommInitRank)(Communicator *, int, NcclId, int);
    int (*Send)(const void *, size_t, int, int, Communicator, cudaStream_t);
    int (*Recv)(void *, size_t, int, int, Communicator, cudaStream_t);
    int (*AllReduce)(const void *, void *, size_t, int, int, Communicator, cudaStream_t);
    int (*GroupStart)(), (*GroupEnd)();
} nccl;

static Ranks here = {0, 1};
static Communicator communicator;
Ranks ranks(void) { return here; }

static void check(int result, const char *what) {
    if (result != 0)
        cannot_run("rank %d: NCCL cannot %s: %s", here.number, what, nccl.GetErrorString(result));
}

template <typename Function> static void load(void *library, const char *name, Function *&function) {
    function = reinterpret_cast<Function *>(dlsym(library, name));
    if (!function)
        cannot_run("--rendezvous: libnccl.so.2 has no %s: install NCCL 2.7 or later", name);
}

static void load_nccl() {
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library)
        cannot_run("--rendezvous: %s: install NCCL, or name its folder in LD_LIBRARY_PATH", dlerror());
    load(library, "ncclGetErrorString", nccl.GetErrorString);
    load(library, "ncclGetUniqueId", nccl.GetUniqueId);
    load(library, "ncclCommInitRank", nccl.CommInitRank);
    load(library, "ncclSend", nccl.Send);
    load(library, "ncclRecv", nccl.Recv);
    load(library, "ncclAllReduce", nccl.AllReduce);
    load(library, "ncclGroupStart", nccl.GroupStart);
    load(library, "ncclGroupEnd", nccl.GroupEnd);
}

/* Open MPI, Slurm, torchrun, MPICH; -1: none of them has started this process. */
static int from_environment(const char *const (&names)[4]) {
    for (const char *name : names)
        if (const char *text = getenv(name))
            return atoi(text);
    return -1;
}

void ranks_join(const char *file) {
    static const char *const number[] = {"OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK", "PMI_RANK"},
                             *const count[] = {"OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "WORLD_SIZE", "PMI_SIZE"},
                             *const local[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "LOCAL_RANK",
                                               "MPI_LOCALRANKID"};
    const Ranks found = {from_environment(number), from_environment(count)};
    if (found.number < 0 || found.count <= found.number || found.count > MAX_DEVICES)
        cannot_run("--rendezvous: start 1 to %d processes with mpirun, srun, or torchrun --no-python", MAX_DEVICES);
    const int local_number = from_environment(local);
    here = found;
    load_nccl();
    device_choose((local_number < 0 ? here.number : local_number) % device_count());
    NcclId id;
    if (here.number == 0)
        check(nccl.GetUniqueId(&id), "make an id");
    meet(file, here.number, here.count, &id, sizeof id);
    check(nccl.CommInitRank(&communicator, here.count, id, here.number), "connect the ranks");
    if (here.number > 0 && !freopen("/dev/null", "w", stdout)) /* rank 0 has the results */
        cannot_run("rank %d: /dev/null cannot be opened: %m", here.number);
}

void ranks_message(void *memory, size_t bytes, int other, int sends, cudaStream_t queue) {
    check(sends ? nccl.Send(memory, bytes, NCCL_INT8, other, communicator, queue)
                : nccl.Recv(memory, bytes, NCCL_INT8, other, communicator, queue),
          sends ? "send" : "receive");
}

void ranks_group(int begins) {
    if (here.count > 1)
        check(begins ? nccl.GroupStart() : nccl.GroupEnd(), "exchange messages");
}

double ranks_max(double x) {
    static double *on_device;
    const cudaStream_t queue = static_cast<cudaStream_t>(device_stream());
    if (here.count == 1)
        return x;
    if (!on_device)
        CHECK(cudaMalloc(&on_device, sizeof x));
    CHECK(cudaMemcpy(on_device, &x, sizeof x, cudaMemcpyHostToDevice));
    check(nccl.AllReduce(on_device, on_device, 1, NCCL_FLOAT64, NCCL_MAX, communicator, queue), "compare times");
    CHECK(cudaStreamSynchronize(queue));
    CHECK(cudaMemcpy(&x, on_device, sizeof x, cudaMemcpyDeviceToHost));
    return x;
}
