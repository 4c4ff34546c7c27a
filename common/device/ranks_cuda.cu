/* ranks_cuda.cu - see ranks.h. NCCL is loaded when ranks are joined, so nothing else needs it, and no build looks for it.
 *
 * In the file where ranks meet each of them locks the byte of its number and holds that lock while it lives; the others watch it
 * from a thread. Rank 0 empties the file and writes NCCL's id into it before it takes its lock, so a file that an earlier run
 * has left does no harm. */
#include "ranks.h"

#include "../host/errors.h"
#include "cuda_check.h"
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

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
static int meeting = -1;                             /* the file */
enum { STATE = 512, ID = 1024, SECONDS = 60 };       /* offsets in the file; how long to wait for the others */
enum State : char { ABSENT, RUNNING, DONE, FAILED }; /* of a rank, at STATE + its number; FAILED: why has been said */

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

static struct flock lock_of(int rank) {
    struct flock lock = {};
    lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = rank, lock.l_len = 1;
    return lock;
}
static bool is_alive(int rank) {
    struct flock lock = lock_of(rank);
    return rank == here.number || (fcntl(meeting, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
}
static State state_of(int rank) {
    State state;
    return pread(meeting, &state, 1, STATE + rank) == 1 ? state : ABSENT;
}
static void write_file(const void *from, size_t bytes, off_t at) {
    if (pwrite(meeting, from, bytes, at) != (ssize_t)bytes)
        fprintf(stderr, "rank %d: the file of --rendezvous cannot be written: %m\n", here.number), _exit(2);
}
static void set_state(int rank, State state) { write_file(&state, 1, STATE + rank); }

static void *watch(void *) {
    for (;; usleep(200000)) {
        int speaker = 0; /* one line is enough */
        while (!is_alive(speaker))
            speaker++;
        for (int rank = 0; rank < here.count; rank++) {
            if (is_alive(rank) || state_of(rank) == DONE || (state_of(rank) != FAILED && speaker != here.number))
                continue;
            if (state_of(rank) != FAILED)
                fprintf(stderr, "rank %d of %d has crashed or was killed, so the others end, too\n", rank, here.count);
            set_state(rank, FAILED), set_state(here.number, FAILED);
            _exit(2);
        }
    }
}

static void leave(int code, void *) { set_state(here.number, code == 2 ? FAILED : DONE); }

template <typename Condition> static void wait_for(int rank, Condition is_true) {
    for (int tenths = 0; !is_true(); usleep(100000))
        if (tenths++ == 10 * SECONDS)
            cannot_run("--rendezvous: rank %d of %d has not come within %d seconds", rank, here.count, SECONDS);
}

static void meet(const char *file) {
    NcclId id;
    meeting = open(file, O_RDWR | O_CREAT | (here.number ? 0 : O_TRUNC), 0600);
    if (meeting < 0)
        cannot_run("--rendezvous %s: %m: choose a file that all ranks can write", file);
    if (here.number == 0) {
        check(nccl.GetUniqueId(&id), "make an id");
        write_file(&id, sizeof id, ID);
    } else {
        wait_for(0, [] { return is_alive(0); });
    }
    struct flock own = lock_of(here.number);
    if (fcntl(meeting, F_SETLK, &own) < 0)
        cannot_run("--rendezvous %s: %m: choose a file that no other run uses, and that can be locked", file);
    set_state(here.number, RUNNING);
    on_exit(leave, nullptr);
    for (int rank = 0; rank < here.count; rank++)
        wait_for(rank, [=] { return state_of(rank) != ABSENT; });
    pthread_t thread;
    if (pthread_create(&thread, nullptr, watch, nullptr) != 0 || pread(meeting, &id, sizeof id, ID) != sizeof id)
        cannot_run("--rendezvous %s: %m", file);
    check(nccl.CommInitRank(&communicator, here.count, id, here.number), "connect the ranks");
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
    meet(file);
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
