/* grid_case.c - one case: its inputs, on host and device; running a variant on it; and saying which case it was. */
#define _POSIX_C_SOURCE 200809L
#include "../common/numeric.h"
#include "../common/harness/launch.h"
#include "../common/host/memory.h"
#include "../common/host/random.h"
#include "../common/judge/oracle.h"
#include "../common/block_mask.h"
#include "../common/harness/launch.h"
#include "../common/harness/row.h"
#include "../common/harness/tensors.h"
#include "../common/host/errors.h"
#include "grid.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *fuzz_program;

/* Inputs 0 .. 3: Q, K, V, dO. NORMAL ones are those that the stage's program draws by the same seed. */
static void *draw_tensor(const Case *c, int tensor) {
    const Problem *p = &c->p;
    int is_query = tensor == 0 || tensor == 3, is_score = tensor < 2, seqlen = is_query ? p->seqlen_q : p->seqlen_k;
    size_t count = is_query ? query_elements(p) : key_elements(p);
    void *host = host_alloc(count, dtype_bytes(p->dtype));
    int is_opposed = (c->inputs == VERY_NEGATIVE || c->inputs == RISING || c->inputs == SINKING) && is_score;
    double mean = is_opposed                         ? (tensor == 0 ? 4 : -4)
                  : c->inputs == K_MEAN && tensor == 1                           ? 2
                  : (c->inputs == V_MEAN || c->inputs == V_GROWS) && tensor == 2 ? 0.5
                                                                                 : 0;
    random_normal(p->dtype, host, count, c->seed, tensor, mean, is_opposed ? 0.25 : 1);
    double shift = exp2(tensor == 0 ? c->qk_shift : tensor == 1 ? -c->qk_shift : tensor == 2 ? c->v_shift : 0);
    for (size_t i = 0; i < count; i++) {
        size_t row = i / p->head_dim;
        int d = i % p->head_dim;
        double value = dtype_to_double(p->dtype, host, i);
        if (c->inputs == EQUAL && tensor == 0)
            value = 0;
        if (c->inputs == V_GROWS && tensor == 2) /* to 10 times as large at the end: tiles of keys differ */
            value *= exp2(row % seqlen * 3.3 / seqlen);
        if ((c->inputs == RISING || c->inputs == SINKING) && tensor == 1) /* scores of -192 to -128, neighbors close together */
            value *= 1 + 0.5 * (c->inputs == RISING ? seqlen - 1 - row % seqlen : row % seqlen) / seqlen;
        if (c->inputs == OUTLIER && is_score && d == (int)(row * 7 % p->head_dim))
            value = 100;
        if (c->inputs == ONE_HOT && is_score) /* scores 0 and, where row and column hit the same d, +-100 */
            value = d != (int)(row % p->head_dim) ? 0 : (row & 64 ? -1 : 1) * 10 * sqrt(sqrt((double)p->head_dim));
        if (c->inputs == FAR_BELOW &&
            is_score) /* every score is about -2e32, and times log2(e) it has more digits than fp32 */
            value = d ? 0 : tensor == 0 ? 0x1.98p53 : -0x1.98p53;
        dtype_store(p->dtype, host, i, value * shift);
    }
    return host;
}

void prepare_cases(size_t begin, size_t end, void *context) {
    for (Case *c = (Case *)context + begin; c < (Case *)context + end; c++) {
        c->host =
            (HostTensors){draw_tensor(c, 0), draw_tensor(c, 1), draw_tensor(c, 2), stage.kind == BACKWARD ? draw_tensor(c, 3) : NULL};
        grid_kind.solve(c);
    }
}

/* Ends the program if there is no memory. */
static void *allocate(size_t bytes, const char *purpose) {
    void *memory = device_alloc(bytes, purpose); /* arrives poisoned */
    if (!memory)
        cannot_run("no device memory for %s", purpose);
    return memory;
}

/* Whether anybody keeps one of these keys. */
static int is_block_kept(const Case *c, int batch, int begin, int end) {
    for (int row = 0; row < c->p.seqlen_q; row++)
        for (int key = begin; key < end; key++)
            if (oracle_sees(&c->p, c->key_lengths, batch, row, key) && oracle_keeps(&c->p, c->key_lengths, batch, row, key))
                return 1;
    return 0;
}

/* K or V with NaN wherever no key exists, and in key blocks that no query keeps, by a block mask or a window. */
static void *upload_keys(const Case *c, const void *host, const char *purpose) {
    const Problem *p = &c->p;
    size_t bytes = key_elements(p) * dtype_bytes(p->dtype), head = bytes / p->batch / p->kv_heads, row = head / p->seqlen_k;
    const int has_mask = p->blocks || p->score;
    if (!c->key_lengths && !has_mask)
        return upload(host, bytes, purpose);
    char *copy = host_alloc(bytes, 1);
    memcpy(copy, host, bytes);
    for (int i = 0; i < p->batch * p->kv_heads; i++) {
        size_t exist = key_length(p, c->key_lengths, i / p->kv_heads) * row;
        memset(copy + i * head + exist, 0xff, head - exist);
        for (int key = 0, end; has_mask && key < p->seqlen_k; key = end) {
            end = key + MASK_BLOCK < p->seqlen_k ? key + MASK_BLOCK : p->seqlen_k;
            if (!is_block_kept(c, i / p->kv_heads, key, end))
                memset(copy + i * head + key * row, 0xff, (end - key) * row);
        }
    }
    void *memory = upload(copy, bytes, purpose);
    free(copy);
    return memory;
}

void open_case(Case *c) {
    const Problem *p = &c->p;
    size_t query_bytes = query_elements(p) * dtype_bytes(p->dtype);
    c->t.q = upload(c->host.q, query_bytes, "Q");
    c->t.k = upload_keys(c, c->host.k, "K");
    c->t.v = upload_keys(c, c->host.v, "V");
    c->t.o = c->o ? upload(c->o, query_bytes, "O") : allocate(query_bytes, "O");
    c->t.lse = c->o ? upload(c->lse, row_count(p) * sizeof(float), "LSE") : allocate(row_count(p) * sizeof(float), "LSE");
    upload_options(p, c->key_lengths, &c->t);
    if (stage.kind == BACKWARD) {
        c->t.d_o = upload(c->host.d_o, query_bytes, "dO");
        c->t.d_sinks = c->t.score.sinks ? allocate(p->heads * sizeof(float), "dsinks") : NULL;
        c->t.dq = allocate(query_bytes, "dQ");
        c->t.dk = allocate(key_elements(p) * dtype_bytes(p->dtype), "dK");
        c->t.dv = allocate(key_elements(p) * dtype_bytes(p->dtype), "dV");
    }
    void *pointers[] = {c->t.o, c->t.lse, c->t.dq, c->t.dk, c->t.dv, c->t.d_sinks};
    int count = grid_kind.outputs(c, c->outputs);
    for (int i = 0; i < count; i++) {
        c->outputs[i].pointer = pointers[i + (stage.kind == BACKWARD ? 2 : 0)];
        c->got[i] = host_alloc(c->outputs[i].bytes, 1);
    }
}

void close_case(Case *c) {
    const Tensors *t = &c->t;
    const void *device[] = {t->q, t->k, t->v, t->o, t->lse, t->d_o, t->dq, t->dk, t->dv, t->d_sinks};
    free_options(t);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        device_free((void *)device[i]);
    void *host[] = {c->host.q, c->host.k, c->host.v, c->host.d_o, c->o, c->lse, c->key_lengths,
                    (void *)c->p.blocks, (void *)c->p.score};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    for (int i = 0; i < MAX_OUTPUTS; i++)
        free(c->want[i]), free(c->got[i]);
}

/* The command that repeats the case: in the stage's own program, where its options can say it; in the fuzz. */
static void about(const Case *c, const Variant *variant) {
    static const char *names[] = {"normal",
                                  "peaked",
                                  "outlier",
                                  "equal",
                                  "very negative",
                                  "one-hot",
                                  "growing V",
                                  "V with a mean of 0.5",
                                  "K with a mean of 2",
                                  "scores of -2^106,",
                                  "negative scores, rising,",
                                  "negative scores, sinking,"};
    const Problem *p = &c->p;
    char lengths[1024] = "", settings[4096] = "";
    size_t used = 0;
    for (int b = 0; c->key_lengths && b < p->batch && used < sizeof lengths; b++)
        used += snprintf(lengths + used, sizeof lengths - used, "%s%d", b ? "," : " --lengths ", c->key_lengths[b]);
    used = 0;
    static Run run; /* only so that the harness prints the settings */
    run.stage = &stage, run.p = p;
    for (int i = 0; i < MAX_SETTINGS && stage.settings[i].name; i++) {
        const Setting *s = &stage.settings[i];
        int is_flag = !s->choices && !s->max;
        if (s->max == TEXT ? p->blocks || p->score : p->settings[i])
            used += snprintf(settings + used, sizeof settings - used, " --%s%s%s", s->name, is_flag ? "" : " ",
                             is_flag ? "" : setting_text(&run, i));
    }
    diag("%s/%s --variant %s --batch %d --heads %d --kv-heads %d --seqlen %d --seqlen-k %d --head-dim %d --dtype %s%s%s "
         "--scale %.9g%s --seed %llu",
         stage.name, stage.name, variant->name, p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim,
         dtype_name(p->dtype), p->causal ? " --causal" : "", lengths, p->scale, settings, (unsigned long long)c->seed);
    if ((c->inputs != NORMAL && c->inputs != PEAKED) || c->qk_shift || c->v_shift)
        diag("  but with %s inputs, Q times 2^%d, K times 2^%d, V times 2^%d", names[c->inputs], c->qk_shift, -c->qk_shift,
             c->v_shift);
    if (fuzz_program)
        diag("%s --fuzz 1 --seed %llu --variant %s", fuzz_program, (unsigned long long)c->seed, variant->name);
}

static int all_zero(const Buffer *buffer) {
    unsigned char *bytes = host_alloc(buffer->bytes, 1);
    size_t i = 0;
    device_read(bytes, buffer->pointer, buffer->bytes);
    while (i < buffer->bytes && bytes[i] == 0)
        i++;
    free(bytes);
    return i == buffer->bytes;
}

/* A kernel that hangs ends the program, with the command that repeats it: the lines are written beforehand, for a signal that comes in the
 * middle of anything. The limit is far beyond what the slowest case takes under a sanitizer. */
static char hang[8192];
static void end_hang(int signal) {
    (void)signal;
    if (write(1, hang, strlen(hang)) < 0)
        _exit(2);
    _exit(1);
}

static void limit_time(const Case *c, const Variant *variant) {
    const char *given = getenv("GRID_LIMIT");
    const int seconds = given ? atoi(given) : 300;
    snprintf(hang, sizeof hang, "Bail out! %s/%s has not ended after %d s: --seqlen %d --seqlen-k %d --head-dim %d --dtype %s%s, seed %llu\n",
             stage.name, variant->name, seconds, c->p.seqlen_q, c->p.seqlen_k, c->p.head_dim, dtype_name(c->p.dtype),
             c->p.causal ? " --causal" : "", (unsigned long long)c->seed);
    signal(SIGALRM, end_hang);
    alarm((unsigned)seconds);
}

/* Runs one variant on poisoned outputs and workspace, and reads the outputs back. Returns whether all is right. */
int try_variant(const Variant *variant, Case *c) {
    Buffer workspace[MAX_WORKSPACE_BUFFERS] = {0};
    const char *damaged, *disorder = NULL;
    int buffers = variant->plan ? variant->plan(&c->p, workspace) : 0;
    if (!alloc_buffers(variant, &c->p, workspace, buffers))
        cannot_run("no device memory for the workspace of %s", variant->name);
    for (int i = 0; i < MAX_OUTPUTS && c->outputs[i].pointer; i++)
        device_fill(c->outputs[i].pointer, 0xff, c->outputs[i].bytes);
    limit_time(c, variant);
    if (variant_prepares(variant, &c->p))
        variant->preparation->launch(&c->p, &c->t, workspace);
    if (variant->scatter)
        variant->scatter(&c->p, &c->t, workspace);
    variant->launch(&c->p, &c->t, workspace);
    if (variant->collect)
        variant->collect(&c->p, &c->t, workspace);
    damaged = device_damaged();
    for (int i = 0; i < MAX_OUTPUTS && c->outputs[i].pointer; i++)
        device_read(c->got[i], c->outputs[i].pointer, c->outputs[i].bytes);
    alarm(0);
    int good = grid_kind.judge(c, variant, workspace, about);
    for (int i = 0; i < buffers; i++)
        if (workspace[i].zeroed && !all_zero(&workspace[i]))
            disorder = workspace[i].purpose;
    free_buffers(workspace, buffers);
    if (good && (damaged || disorder))
        about(c, variant);
    if (damaged)
        diag("wrote outside %s", damaged);
    if (disorder)
        diag("left no zeros in %s", disorder);
    return good && !damaged && !disorder;
}
