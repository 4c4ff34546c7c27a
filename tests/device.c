/* device.c - device.h's own figures: what it says of itself, and memory: counted as it was asked for, NaN when it is fresh, and
 * watched behind its end. And which problems a variant refuses, by what the device is.
 */
#define _POSIX_C_SOURCE 200809L
#include "../common/device/device.h"
#include "../common/harness/variant.h"
#include "../common/harness/options.h"
#include "../common/host/memory.h"
#include "capture.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

static int all_bytes(const void *device, size_t bytes, int value) {
    unsigned char *host = host_alloc(bytes, 1);
    size_t same = 0;
    device_read(host, device, bytes);
    while (same < bytes && host[same] == value)
        same++;
    free(host);
    return same == bytes;
}

static void test_memory(void) {
    enum { A = 1000, B = 77 };
    size_t before = device_allocated();
    unsigned char *a = device_alloc(A, "first"), *b = device_alloc(B, "second"), host[A];
    ok(a && b && (size_t)a % 256 == 0 && (size_t)b % 256 == 0, "memory begins at multiples of 256 bytes");
    ok(device_allocated() == before + A + B, "what is allocated is what was asked for");
    ok(all_bytes(a, A, 0xff) && all_bytes(b, B, 0xff), "fresh memory is NaN");
    for (int i = 0; i < A; i++)
        host[i] = (unsigned char)(i * 7);
    device_write(a, host, A);
    memset(host, 0, sizeof host);
    device_read(host, a, A);
    int same = 1;
    for (int i = 0; i < A; i++)
        same = same && host[i] == (unsigned char)(i * 7);
    ok(same && all_bytes(b, B, 0xff), "what is written can be read");
    device_fill(a + 10, 0xff, A - 10);
    ok(all_bytes(a + 10, A - 10, 0xff) && !all_bytes(a, 10, 0xff), "what is filled is not more than was asked for");

    ok(device_damaged() == NULL, "nothing is damaged");
#if !defined(__SANITIZE_ADDRESS__) /* which would stop the program at what is done here on purpose */
    static const int places[] = {0, 1, 128, 178, -256};
    for (int i = 0; i < 4 + device_properties()->is_cpu; i++) { /* a GPU has no guard strip before the first byte */
        unsigned char kept, other = 0;
        device_read(&kept, b + B + places[i], 1);
        device_write(b + B + places[i], &other, 1);
        const char *damaged = device_damaged();
        ok(damaged && strcmp(damaged, "second") == 0, "byte %d of %d, written, is seen, with its owner", B + places[i], B);
        device_write(b + B + places[i], &kept, 1);
    }
    ok(device_damaged() == NULL, "put back, nothing is");
#endif

    device_free(NULL);
    ok(device_allocated() == before + A + B, "to free NULL is nothing");
    device_free(a);
    ok(device_allocated() == before + B && all_bytes(b, B, 0xff), "one given back, the other still there");
    device_free(b);
    ok(device_allocated() == before, "both given back");
    ok(!device_alloc((size_t)1 << 60, "all") && device_allocated() == before, "too much is refused");
    if (!device_properties()->cuda_version[0]) {
        void *one = device_alloc(1000, "one"), *left = NULL;
        ok(!device_alloc(memory_budget() - 999, "more than is left"),
           "an eighth of the computer's memory is not the device's");
        memory_keep_for_host(memory_budget() - 3000);
        ok(!device_alloc(2001, "more than is left") && (left = device_alloc(2000, "the rest")), "nor what the host keeps");
        device_free(left);
        device_free(one);
        memory_keep_for_host(0);
    }
}

static void free_foreign(void *unused) {
    char mine;
    (void)unused;
    device_free(&mine);
}
static void free_twice(void *unused) {
    (void)unused;
    void *memory = device_alloc(1, "memory");
    device_free(memory);
    device_free(memory);
}

static void test_free(void (*mistake)(void *), const char *name) {
    char *says = said(mistake, NULL);
    const char *end = " was never allocated, or has already been freed\n";
    ok(strncmp(says, "device_free: 0x", 15) == 0 && strchr(says, '\n') == strstr(says, end) + strlen(end) - 1, "%s: one line, exit code 2",
       name);
    free(says);
}

static void test_properties(void) {
    const DeviceProperties *p = device_properties();
    ok(device_count() > 0 && (p->is_cpu ? p->chip == 0 : p->chip >= p->capability),
       "how many devices there are, and which chip");
    ok(p->is_cpu == !p->cuda_version[0] && p->sm_count > 0 && p->capability >= 75 && p->shared_bytes >= 48 * 1024,
       "the device");
    if (!p->is_cpu)
        return;
    char name[160] = "", platform[64], line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !*name && fgets(line, sizeof line, file))
        sscanf(line, "model name : %127[^\n]", name);
    if (file)
        fclose(file);
    ok(strcmp(p->name, *name ? name : "CPU") == 0, "its name is the processor's: %s", p->name);
    snprintf(platform, sizeof platform, "CPU device, %d core%s", p->sm_count, p->sm_count > 1 ? "s" : "");
    ok(strcmp(p->platform, platform) == 0 && p->capability == 80 && p->has_hopper && p->clock_mhz == 0, "%s", p->platform);
}

static const char *never(const Problem *p) { return p->causal ? "has other reasons" : NULL; }

static void test_refusals(void) {
    static const Variant all = {.name = "all", .dtypes = FP16 | BF16 | FP32},
                         some = {.name = "some",
                                 .dtypes = FP16 | BF16,
                                 .head_dims = {32, 64, 128, 136, 144, 152, 160, 168},
                                 .uses = TENSOR_CORES,
                                 .max_seqlen_q = 16,
                                 .refuses = never},
                         hopper = {.name = "hopper",
                                   .dtypes = BF16 | FP32,
                                   .uses = WGMMA};
    static const struct {
        const Variant *variant;
        Problem p;
        int capability, has_hopper;
        const char *reason;
    } cases[] = {
        {&all, {.head_dim = 8, .seqlen_q = 1 << 30, .dtype = DTYPE_FP32}, 75, 0, NULL},
        {&all, {.head_dim = 256, .dtype = DTYPE_BF16}, 75, 0, NULL},
        {&all, {.head_dim = 12}, 75, 0, "takes head dim 8, 16, ..., 256, not 12"},
        {&all, {.head_dim = 264}, 75, 0, "takes head dim 8, 16, ..., 256, not 264"},
        {&some, {.head_dim = 32, .seqlen_q = 16}, 75, 0, NULL},
        {&some, {.head_dim = 168, .seqlen_q = 1}, 75, 0, NULL},
        {&some, {.head_dim = 64, .dtype = DTYPE_FP32}, 80, 1, "takes fp16, bf16, not fp32"},
        {&some, {.head_dim = 72}, 80, 1, "takes head dim 32, 64, 128, 136, 144, 152, 160, 168, not 72"},
        {&some, {.head_dim = 64}, 75, 0, NULL},
        {&some, {.head_dim = 64, .dtype = DTYPE_BF16}, 80, 0, NULL},
        {&some, {.head_dim = 64, .dtype = DTYPE_BF16}, 79, 0, "needs sm_80 for bf16, but this program is limited to sm_79"},
        {&some, {.head_dim = 64, .seqlen_q = 17}, 75, 0, "takes --seqlen from 1 to 16, not 17"},
        {&some, {.head_dim = 64, .causal = 1}, 75, 0, "has other reasons"},
        {&hopper, {.head_dim = 64}, 90, 1, "takes bf16, fp32, not fp16"},
        {&hopper, {.head_dim = 64, .dtype = DTYPE_BF16}, 90, 1, NULL},
        {&hopper,
         {.head_dim = 64, .dtype = DTYPE_FP32},
         90,
         0,
         "needs a Hopper GPU (sm_90) and code for it (ARCH=90a): other chips have no wgmma"},
    };
    DeviceProperties *device = (DeviceProperties *)device_properties(), kept = *device;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        device->capability = cases[i].capability;
        device->has_hopper = cases[i].has_hopper;
        const char *got = variant_refuses(cases[i].variant, &cases[i].p), *want = cases[i].reason;
        if (!ok(want ? got && strcmp(got, want) == 0 : !got, "%s: %s", cases[i].variant->name, want ? want : "takes it"))
            diag("%s", got ? got : "takes it");
    }
    *device = kept;
}

int main(void) {
    test_free(free_foreign, "foreign memory freed"); /* first: an open GPU does not survive a fork */
    test_free(free_twice, "freed twice");
    test_memory();
    test_properties();
    test_refusals();
    return tap_done();
}
