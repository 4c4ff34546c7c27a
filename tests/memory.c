/* memory.c - how much memory a container leaves, told by made-up files; and what the harness asks for before a run. */
#define _XOPEN_SOURCE 700 /* mkdtemp, nftw */
#include "../common/harness/run.h"
#include "../common/host/memory.h"
#include "../common/host/npy.h"
#include "../common/harness/memory_need.h"
#include "../common/harness/options.h"
#include "../common/harness/problems.h"
#include "../common/harness/tensors.h"
#include "capture.h"
#include "tap.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/memory_test_XXXXXX";

static void write_file(const char *path, const char *text) {
    char name[600];
    snprintf(name, sizeof name, "%s/%s", root, path);
    for (char *slash = name + sizeof root; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(name, 0777);
        *slash = '/';
    }
    FILE *file = fopen(name, "w");
    fputs(text, file);
    fclose(file);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *at) {
    (void)status, (void)type;
    return at->level ? remove(path) : 0;
}
static void remove_all(void) { nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

#define V1 "sys/fs/cgroup/memory/"
#define V2 "sys/fs/cgroup/"

static void test_groups(void) {
    static const struct {
        const char *name, *groups; /* /proc/self/cgroup */
        const char *files[6];      /* and what is in others */
        size_t limit;              /* 0: none */
    } cases[] = {
        {"no groups", NULL, {0}, 0},
        {"version 2, inside a container", "0::/\n", {V2 "memory.max", "8000\n"}, 8000},
        {"version 2, no limit", "0::/\n", {V2 "memory.max", "max\n"}, 0},
        {"version 2, its own limit", "0::/a/b\n", {V2 "a/b/memory.max", "800\n", V2 "a/memory.max", "1600\n"}, 800},
        {"version 2, that of a group above it",
         "0::/a/b\n",
         {V2 "a/b/memory.max", "max\n", V2 "a/memory.max", "1600\n", V2 "memory.max", "3200"},
         1600},
        {"version 2, at the top", "0::/a/b\n", {V2 "memory.max", "3200"}, 3200},
        {"version 2, another's group", "0::/a\n", {V2 "b/memory.max", "800", V2 "a/b/memory.max", "80"}, 0},
        {"version 2, more than there is", "0::/\n", {V2 "memory.max", "9223372036854771712"}, 0},
        {"version 1", "3:cpu,cpuacct:/c\n2:memory:/m\n1:name=systemd:/s\n", {V1 "m/memory.limit_in_bytes", "4000\n"}, 4000},
        {"version 1, with other controllers", "2:cpu,memory,io:/m\n", {V1 "m/memory.limit_in_bytes", "4000\n"}, 4000},
        {"version 1, no limit", "2:memory:/\n", {V1 "memory.limit_in_bytes", "9223372036854771712\n"}, 0},
        {"version 1, seen from inside", "2:memory:/docker/12ab\n", {V1 "memory.limit_in_bytes", "4800\n"}, 4800},
        {"both versions", "2:memory:/m\n0::/n\n", {V1 "m/memory.limit_in_bytes", "4000\n", V2 "n/memory.max", "2400"}, 2400},
        {"lines that are none", "\n2\n2:memory\n0::/\n", {V2 "memory.max", "8000\n"}, 8000},
        {"files that hold no number", "0::/a\n", {V2 "a/memory.max", "", V2 "memory.max", "8000"}, 8000},
    };
    setenv("MEMORY_ROOT", root, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t limit = cases[i].limit ? cases[i].limit : (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
        remove_all();
        if (cases[i].groups)
            write_file("proc/self/cgroup", cases[i].groups);
        for (int f = 0; f < 6 && cases[i].files[f]; f += 2)
            write_file(cases[i].files[f], cases[i].files[f + 1]);
        ok(memory_read_budget() == limit / 8 * 7, "%s: seven eighths of %zu bytes", cases[i].name, limit);
    }
    write_file("proc/self/cgroup", "0::/\n");
    write_file(V2 "memory.max", "8000\n");
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){32, files.rlim_max});
    for (int i = 0; i < 32; i++) /* files that stay open would be too many */
        memory_read_budget();
    setrlimit(RLIMIT_NOFILE, &files); /* CUDA opens more */
    ok(memory_budget() == 7000, "the budget of a run");
    write_file(V2 "memory.max", "16000\n");
    ok(memory_budget() == 7000 && memory_read_budget() == 14000, "which is read once");
    memory_keep_for_host(3000);
    ok(memory_for_device() == 4000, "the device has what the host does not keep");
    memory_keep_for_host(7001);
    ok(memory_for_device() == 0, "or nothing");
    memory_keep_for_host(0);
    remove_all();
    unsetenv("MEMORY_ROOT");
}

static PreparedRounding nothing(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    (void)p, (void)workspace, (void)q, (void)k, (void)v;
    return (PreparedRounding){0};
}
static void launch(const Problem *p, const Tensors *t, const Buffer *workspace) { (void)p, (void)t, (void)workspace; }
static int plan(const Problem *p, Buffer *workspace) {
    (void)p;
    workspace[0] = (Buffer){"small", 1000, NULL, 0};
    workspace[1] = (Buffer){"large", 70000, NULL, 0};
    return 2;
}
static int with_setting(const Problem *p) { return p->settings[0]; }

/* Q has 2 * 3 * 40 rows, K and V 2 * 3 * 50, of 64. */
static void test_need(void) {
    static const Preparation small = {.launch = launch, .wanted = with_setting, .values = nothing},
                             lists = {.launch = launch};
    static const Variant forward = {.name = "forward", .dtypes = FP16 | FP32};
    static const Stage
        plain = {.name = "09_plain", .variants = {{.name = "v", .dtypes = FP16 | FP32}}},
        backward = {.name = "09_back", .kind = BACKWARD, .variants = {{.name = "v", .dtypes = FP16}}, .forward = &forward},
        lists_work = {.name = "09_lists",
                      .variants = {{.name = "v", .dtypes = FP16, .launch = launch, .plan = plan, .preparation = &lists}}},
        prepares = {.name = "09_small",
                    .variants = {{.name = "a", .dtypes = FP16},
                                 {.name = "b", .dtypes = FP16, .launch = launch, .plan = plan, .preparation = &small}},
                    .settings = {{.name = "small"}}};
    enum { Q = 2 * 3 * 40 * 64, K = 2 * 3 * 50 * 64, ROWS = 2 * 3 * 40, SAMPLES = 3 * 50 * 8 }; /* three threads */
    enum { LSE = 4 * ROWS, PREPARED = 4 * (Q + 2 * K) + 20 * (Q + ROWS) + 70000 };
    enum { IN = 2 * (Q + 2 * K), OUT = 2 * Q + LSE, CHECKED = 2 * OUT + SAMPLES }; /* in fp16 */
    static const struct {
        const char *name;
        const Stage *stage;
        const char *words[4];
        double host, device;
    } cases[] = {
        {"forward", &plain, {"--dtype=fp16"}, IN + CHECKED, IN + OUT},
        {"fp32", &plain, {"--dtype=fp32"}, 2 * IN + 2 * (4 * Q + LSE) + SAMPLES, 2 * IN + 4 * Q + LSE},
        {"fewer keys", &plain, {"--lengths=7,20"}, IN + 2 * OUT + SAMPLES / 50 * 20, IN + OUT},
        {"time only", &plain, {"--no-validate"}, IN, IN + OUT},
        {"time and save", &plain, {"--no-validate", "--variant=v", "--save=."}, IN + OUT, IN + OUT},
        {"backward", &backward, {"--dtype=fp16"}, IN + 2 * Q + OUT + 2 * IN + 2 * K + SAMPLES, 2 * (IN + 2 * Q) + LSE},
        {"backward, time only", &backward, {"--no-validate"}, IN + 2 * Q, 2 * (IN + 2 * Q) + LSE},
        {"prepared", &prepares, {"--small"}, IN + CHECKED + PREPARED, IN + OUT},
        {"nothing prepared", &prepares, {"--warm"}, IN + CHECKED, IN + OUT},
        {"prepared, but not the inputs", &lists_work, {"--dtype=fp16"}, IN + CHECKED, IN + OUT},
        {"another variant", &prepares, {"--small", "--variant=a"}, IN + CHECKED, IN + OUT},
        {"prepared, time only", &prepares, {"--small", "--no-validate"}, IN, IN + OUT},
    };
    setenv("HOST_THREADS", "3", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *words[10] = {"program", "--batch=2", "--heads=3", "--seqlen=40", "--seqlen-k=50", "--head-dim=64"};
        int count = 6;
        for (int w = 0; w < 4 && cases[i].words[w]; w++)
            words[count++] = (char *)cases[i].words[w];
        Options o = options_parse(cases[i].stage, count, words);
        options_select(&o, 0, 1);
        MemoryNeed need = memory_need(&o);
        if (!ok(need.host == cases[i].host && need.device == cases[i].device, "%s", cases[i].name))
            diag("host %.0f, not %.0f; device %.0f, not %.0f", need.host, cases[i].host, need.device, cases[i].device);
        options_free(&o);
    }
    char *words[] = {"program", "--no-validate", NULL};
    Options o = options_parse(&plain, 2, words);
    options_select(&o, 0, 1);
    double before = memory_need(&o).host;
    static float zeros[128];
    const HostArray files[] = {{"q.npy", ARRAY_FP16, 4, {1, 1, 8, 8}, zeros},
                             {"k.npy", ARRAY_FP32, 4, {1, 1, 16, 8}, zeros},
                             {"v.npy", ARRAY_FP16, 4, {1, 1, 16, 8}, zeros}};
    npy_write("save", root, files, 3);
    o.load = root;
    for (int i = 0; i < 32; i++)
        tensors_read_headers(&o);
    ok(memory_need(&o).host == before + 4 * 128, "the largest file of --load, while it is read");
    remove_all();
    options_free(&o);
    unsetenv("HOST_THREADS");
}

static void alloc(void *size) { host_alloc((size_t)1 << 40, *(size_t *)size); }
static void resize(void *size) { host_resize(NULL, (size_t)1 << 40, *(size_t *)size); }

/* More than an address can count. */
static void test_alloc(void) {
    const char *want = "out of host memory: 8796093022208.0 MiB more are needed\n";
    char *texts[] = {said(alloc, &(size_t){1 << 23}), said(resize, &(size_t){1 << 23}), said(alloc, &(size_t){0})};
    ok(strstr(texts[0], want) && strstr(texts[1], want) && !strstr(texts[2], "memory: "), /* a sanitizer has a word of its own */
       "memory that is not there ends the program");
    for (int i = 0; i < 3; i++)
        free(texts[i]);
}

int main(void) {
    test_alloc();
    if (!mkdtemp(root))
        return 1;
    test_groups();
    test_need();
    rmdir(root);
    return tap_done();
}
