/* short.c - no false verdict on short sequences: a backward stage's own program on random problems, its variants as they are and
 * one of them with a mistake.
 *
 *     build/cpu/tests/short_05_fa2_backward [--fuzz N] [--seed S] [--seconds T]      N problems, of the seeds S, S + 1, ...
 *
 * Linked once a backward stage against that stage's table. 1 to 16 queries, or keys, or both; scales from 0.01 to 2; Q, K, V and dO
 * of N(0,1), or of magnitudes from 1e-6 to 1e4, or constant. There numbers leave the middle of their format, and gradients cancel:
 * what one key gets is 0, dS overflows, P is subnormal. The program must say of each variant
 *
 *     right, if it is;   "not checked" of a tensor whose bound says nothing: counted by cause;   FAIL with the reason, if its dS
 *     overflows: that it does is computed here again;   and FAIL of the mistake, except in a tensor that is not checked.
 */
#define _GNU_SOURCE /* mkdtemp */
#include "../common/host/memory.h"
#include "../common/host/npy.h"
#include "../common/host/random.h"
#include "../common/judge/oracle.h"
#include "../common/judge/rows.h"
#include "../common/judge/gradient.h"
#include "../common/device/device.h"
#include "../common/harness/variant.h"
#include "../common/stage.h"
#include "run_program.h"
#include "tap.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern const Stage stage;

enum { Q, K, V, D_O, INPUTS };
static char folder[] = "/tmp/short-XXXXXX";
static const char *const FILES[INPUTS] = {"q.npy", "k.npy", "v.npy", "do.npy"};

/* ---- a problem ---- */

typedef struct {
    uint64_t seed;
    Problem p;
    int lengths[2]; /* of each batch entry; seqlen_k: all */
    HostTensors in; /* in p.dtype */
    double largest[INPUTS];
} Case;

static double uniform(uint64_t seed, uint32_t purpose) { return random_uniform(seed, 77, purpose); }
static int pick(uint64_t seed, uint32_t purpose, int count) { return (int)(uniform(seed, purpose) * count); }

/* N(0,1), half of the time times 1e-6 to 1e4; one time in eight all numbers are the same. fp16 ends at 65504. */
static void *draw(Case *c, int tensor) {
    const Problem rows = tensor == Q || tensor == D_O ? c->p : keys_as_queries(&c->p);
    const size_t count = query_elements(&rows);
    const uint32_t purpose = 100 + 10 * (uint32_t)tensor;
    const double size = pick(c->seed, purpose, 2) ? 1 : pow(10, 10 * uniform(c->seed, purpose + 1) - 6);
    const int is_constant = pick(c->seed, purpose + 2, 8) == 0;
    float *normal = host_alloc(count, sizeof *normal);
    void *to = host_alloc(count, dtype_bytes(c->p.dtype));
    random_normal(DTYPE_FP32, normal, count, c->seed, (uint32_t)tensor, 0, 1);
    for (size_t i = 0; i < count; i++) {
        dtype_store(c->p.dtype, to, i, fmax(-6e4, fmin(6e4, size * (is_constant ? 1 : (double)normal[i]))));
        c->largest[tensor] = fmax(c->largest[tensor], fabs(dtype_to_double(c->p.dtype, to, i)));
    }
    free(normal);
    return to;
}

static Case make_case(uint64_t seed) {
    enum { SHORT = 1, LONG = 3, DTYPE = 5, SCALE, HEADS, BATCH, DIM, CAUSAL, LENGTHS };
    Case c = {.seed = seed};
    const int few = 1 + pick(seed, SHORT, 16), others = 1 + pick(seed, SHORT + 1, 16),
              many = (int)exp2(uniform(seed, LONG) * log2(700)), which = pick(seed, LONG + 1, 3);
    c.p = (Problem){.batch = 1 + (pick(seed, BATCH, 4) == 0),
                    .kv_heads = 1,
                    .heads = 1 + (pick(seed, HEADS, 3) == 0),
                    .seqlen_q = which == 1 ? many : few,
                    .seqlen_k = which == 2   ? many
                                : which == 1 ? few
                                             : others,
                    .head_dim = pick(seed, DIM, 4) ? 64 : 128,
                    .dtype = (Dtype)pick(seed, DTYPE, DTYPE_COUNT),
                    .causal = pick(seed, CAUSAL, 2),
                    .scale = (float)pow(10, -2 + uniform(seed, SCALE) * log10(200))};
    for (int b = 0; b < 2; b++)
        c.lengths[b] = pick(seed, LENGTHS, 4) ? c.p.seqlen_k : pick(seed, LENGTHS + 1 + (uint32_t)b, c.p.seqlen_k + 1);
    c.in = (HostTensors){draw(&c, Q), draw(&c, K), draw(&c, V), draw(&c, D_O)};
    return c;
}

static void free_case(Case *c) { free(c->in.q), free(c->in.k), free(c->in.v), free(c->in.d_o); }

/* Into files that --load reads, in fp32, which has every number of the other two. */
static void save(const Case *c) {
    void *tensors[INPUTS] = {c->in.q, c->in.k, c->in.v, c->in.d_o};
    HostArray files[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        const Problem rows = i == Q || i == D_O ? c->p : keys_as_queries(&c->p);
        float *data = host_alloc(query_elements(&rows), sizeof *data);
        for (size_t j = 0; j < query_elements(&rows); j++)
            data[j] = (float)dtype_to_double(c->p.dtype, tensors[i], j);
        files[i] = (HostArray){FILES[i],
                               ARRAY_FP32,
                               4,
                               {(size_t)rows.batch, (size_t)rows.heads, (size_t)rows.seqlen_q, (size_t)rows.head_dim},
                               data};
    }
    npy_write("save", folder, files, INPUTS);
    for (int i = 0; i < INPUTS; i++)
        free((void *)files[i].data);
}

/* The most keys that a query sees. */
static int most_keys(const Case *c) {
    int most = 0;
    for (size_t row = 0; row < row_count(&c->p); row++) {
        int visible = oracle_view(&c->p, c->lengths, row_index(&c->p, row)).visible;
        most = visible > most ? visible : most;
    }
    return most;
}

/* The largest |dS|, in double precision. */
static double largest_ds(const Case *c) {
    const Problem *p = &c->p;
    Samples exact = samples_compute(p, c->lengths, &c->in, row_count(p));
    double q[MAX_HEAD_DIM], k[MAX_HEAD_DIM], v[MAX_HEAD_DIM], d_o[MAX_HEAD_DIM], largest = 0;
    for (size_t row = 0; row < row_count(p); row++) {
        OracleView view = oracle_view(p, c->lengths, row_index(p, row));
        read_row(p, c->in.q, row, q), read_row(p, c->in.d_o, row, d_o);
        double delta = dot(d_o, exact.o + row * p->head_dim, p->head_dim);
        for (int j = 0; j < view.visible; j++) {
            read_row(p, c->in.k, view.first_key + j, k), read_row(p, c->in.v, view.first_key + j, v);
            double p_ij = exp(p->scale * dot(q, k, p->head_dim) - exact.lse[row]);
            largest = fmax(largest, fabs(p_ij * (dot(d_o, v, p->head_dim) - delta)));
        }
    }
    free_samples(&exact);
    return largest;
}

/* ---- a variant with a mistake ---- */

typedef enum { ZEROS, DOUBLED, NEGATED, ONE_NAN, MISTAKES } Mistake;
static const char *const TENSORS[3] = {"dQ", "dK", "dV"};
static struct {
    const Variant *of;
    Mistake what;
    int tensor; /* dQ, dK or dV */
    uint64_t seed;
} mistake;

static int plan_mistaken(const Problem *p, Buffer *workspace) {
    return mistake.of->plan ? mistake.of->plan(p, workspace) : 0;
}

static void launch_mistaken(const Problem *p, const Tensors *t, const Buffer *workspace) {
    void *const tensors[] = {t->dq, t->dk, t->dv}, *tensor = tensors[mistake.tensor];
    const size_t count = mistake.tensor ? key_elements(p) : query_elements(p), bytes = count * dtype_bytes(p->dtype);
    mistake.of->launch(p, t, workspace);
    if (mistake.of->collect)
        mistake.of->collect(p, t, workspace);
    void *host = host_alloc(bytes, 1);
    device_read(host, tensor, bytes);
    for (size_t i = 0; i < count && mistake.what != ONE_NAN; i++)
        dtype_store(p->dtype, host, i,
                    dtype_to_double(p->dtype, host, i) * (mistake.what == ZEROS     ? 0
                                                          : mistake.what == DOUBLED ? 2
                                                                                    : -1));
    if (mistake.what == ZEROS)
        memset(host, 0, bytes); /* infinity times 0 is no zero */
    if (mistake.what == ONE_NAN)
        dtype_store(p->dtype, host, (size_t)(uniform(mistake.seed, 50) * (double)count), (double)NAN);
    device_write(tensor, host, bytes);
    free(host);
}

/* The stage with one variant more, that of the seed's mistake. */
static Stage with_mistake(uint64_t seed) {
    Stage s = stage;
    int count = 0;
    while (s.variants[count].name)
        count++;
    mistake.of = &stage.variants[pick(seed, 40, count)];
    mistake.what = (Mistake)pick(seed, 41, MISTAKES);
    mistake.tensor = pick(seed, 42, 3);
    mistake.seed = seed;
    s.variants[count] = *mistake.of;
    s.variants[count].name = "mistaken";
    s.variants[count].launch = launch_mistaken;
    s.variants[count].plan = plan_mistaken;
    s.variants[count].collect = NULL; /* its launcher does that */
    s.variants[count].predict = NULL;
    return s;
}

/* ---- what the program says ---- */

static void options_of(const Case *c, char *text, size_t size) {
    snprintf(text, size, "--load %s --dtype %s --scale %.9g --lengths %d", folder, dtype_name(c->p.dtype), c->p.scale,
             c->lengths[0]);
    if (c->p.batch > 1)
        snprintf(text + strlen(text), size - strlen(text), ",%d", c->lengths[1]);
    snprintf(text + strlen(text), size - strlen(text), "%s --iters 1 --json", c->p.causal ? " --causal" : "");
}

/* A row of JSON: what stands behind a key, up to `end`. */
static void field(const char *row, const char *key, char end, char *value, size_t size) {
    char name[32];
    snprintf(name, sizeof name, "\"%s\": ", key);
    const char *at = strstr(row, name), *from = at ? at + strlen(name) : "";
    from += *from == '"';
    snprintf(value, size, "%.*s", (int)strcspn(from, (char[]){end, '"', '\n', 0}), from);
}

/* ---- counting ---- */

/* Why a tensor is not checked. */
typedef enum { ONE_KEY, TOO_LARGE, SUBNORMAL, CANCELS, CAUSES } Cause;
static const char *const CAUSE_NAMES[CAUSES] = {"at most one key, so that it is 0", "beyond the dtype's numbers",
                                                "made of numbers below the dtype's normal ones", "terms that cancel"};
static const char *const ALL_TENSORS[] = {"O", "LSE", "dQ", "dK", "dV"};
enum { TENSOR_COUNT = sizeof ALL_TENSORS / sizeof *ALL_TENSORS };
static struct {
    long refused, problems, right, unchecked, overflow, false_fail, false_code, caught, excused, missed;
    long causes[TENSOR_COUNT][CAUSES];
} total;

static Cause cause_of(const Case *c, int tensor, double largest) {
    const double scores = (double)c->p.scale, beyond = dtype_beyond(c->p.dtype);
    const double factor[] = {c->largest[V], INFINITY, scores * c->largest[K], scores * c->largest[Q], c->largest[D_O]};
    const double normal = dtype_step(c->p.dtype) / (2 * dtype_epsilon(c->p.dtype));
    if (most_keys(c) <= 1 && tensor != 4)
        return ONE_KEY;
    if (largest >= beyond)
        return TOO_LARGE;
    /* by how much its terms, P or dS times the factor, are above what is normal; and it itself */
    return largest < 16 * normal * factor[tensor] || largest < 16 * normal ? SUBNORMAL : CANCELS;
}

/* "not checked: rounding alone may change dQ by 4.6e-07, and it is at most 1.6e-07; dK by ..." */
static void count_unchecked(const Case *c, const char *note) {
    for (int i = 0; i < TENSOR_COUNT; i++) {
        char name[16];
        double allowed, largest;
        snprintf(name, sizeof name, " %s by ", ALL_TENSORS[i]);
        const char *at = strstr(note, name);
        if (at && sscanf(at + strlen(name), "%lf, and it is at most %lf", &allowed, &largest) == 2)
            total.causes[i][cause_of(c, i, largest)]++;
    }
}

/* Whether the note excuses a variant that is right: its dS, rounded to 16 bits, overflows. */
static int is_explained(const Case *c, const char *variant, const char *note) {
    int rounds = !strstr(variant, "/fma") && strcmp(variant, "00_naive") != 0;
    return rounds && strstr(note, "dS reaches ") && strstr(note, "loss scale") &&
           largest_ds(c) >= 0.999 * dtype_beyond(c->p.dtype);
}

static void blame(const Case *c, const char *row, const char *why) {
    static int blamed;
    if (blamed++ < 20)
        diag("seed %" PRIu64 ", %dx%d, %s: %s\n#   %s%s", c->seed, c->p.seqlen_q, c->p.seqlen_k, dtype_name(c->p.dtype), why,
             row, run.err);
}

/* Returns what the row makes of the exit code. What the forward pass left need not be checked. */
static int judge_row(const Case *c, const char *row) {
    char variant[64], ok_field[8], note[500], because[100], tensor[16];
    field(row, "variant", ',', variant, sizeof variant);
    field(row, "ok", ',', ok_field, sizeof ok_field);
    field(row, "note", '"', note, sizeof note);
    if (!strcmp(ok_field, "null") && strncmp(note, "not checked", 11))
        return 0; /* not run, or a part of what a variant does */
    const int code = !strcmp(ok_field, "false")                                                ? 1
                     : !strcmp(ok_field, "null") && !strstr(row, "\"direction\": \"forward\"") ? 2
                                                                                               : 0;
    if (strstr(variant, "/mistaken")) {
        static const char *const names[] = {"zeros", "twice", "minus", "one NaN in"};
        snprintf(tensor, sizeof tensor, " %s by ", TENSORS[mistake.tensor]);
        int caught = !strcmp(ok_field, "false"), excused = mistake.what != ONE_NAN && strstr(note, tensor);
        total.caught += caught, total.excused += !caught && excused;
        snprintf(because, sizeof because, "%s %s passes", names[mistake.what], TENSORS[mistake.tensor]);
        if (!caught && !excused)
            total.missed++, blame(c, row, because);
        return code;
    }
    count_unchecked(c, note);
    if (!strcmp(ok_field, "true"))
        total.right++;
    else if (!strcmp(ok_field, "null"))
        total.unchecked++;
    else if (is_explained(c, variant, note))
        total.overflow++;
    else
        total.false_fail++, blame(c, row, "a right variant fails");
    return code;
}

/* The program refuses scores whose rounding errors pass 0.5 (tensors.c). */
static int is_refused(const Case *c) {
    return !(sum_error(c->p.head_dim) * score_size(&c->p, c->in.q, c->in.k) <= LSE_FLOOR);
}

/* Or no forward pass of the stage takes the dtype. */
static int is_taken(const Problem *p) {
    const Variant *forward = forward_of(&stage, p);
    return !variant_refuses(forward, p);
}

static void try_case(uint64_t seed) {
    Case c = make_case(seed);
    if (!is_taken(&c.p)) {
        free_case(&c);
        return;
    }
    if (is_refused(&c)) {
        total.refused++;
    } else {
        const Stage mistaken = with_mistake(seed);
        char options[300];
        options_of(&c, options, sizeof options);
        save(&c);
        run_program(&mistaken, options);
        total.problems++;
        int codes[3] = {0};
        for (char *row = run.out, *end; (end = strchr(row, '\n')); row = end + 1) {
            *end = 0;
            codes[judge_row(&c, row)]++;
        }
        if (run.code != (codes[1] ? 1 : codes[2] ? 2 : 0))
            total.false_code++, blame(&c, run.out, "a wrong exit code");
    }
    free_case(&c);
}

/* ---- known ones ---- */

/* Keys whose P, in fp16, is below 2^-14, while dP - delta is some tens: the error of P in dS is more than dS's own. */
static void test_subnormal(void) {
    static const int seeds[] = {13, 33, 55};
    for (int i = 0; i < 3; i++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--batch 1 --heads 1 --seqlen 2 --seqlen-k 640 --head-dim 64 --causal --scale 0.3 --dtype fp16 --iters 1 "
                 "--json --seed %d",
                 seeds[i]);
        run_program(&stage, options);
        if (!ok(run.code == 0, "%s: 2 queries, 640 keys, P below fp16's normal numbers, seed %d", stage.name, seeds[i]))
            diag("%s%s", run.out, run.err);
    }
}

/* A problem of one head in fp16 whose Q, K, V and dO are N(0,1) times these. */
static Case known(int seqlen_q, int seqlen_k, const double sizes[INPUTS]) {
    Case c = {.lengths = {seqlen_k}};
    c.p = (Problem){
        .batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = 64, .scale = 0.125f};
    void **tensors[INPUTS] = {&c.in.q, &c.in.k, &c.in.v, &c.in.d_o};
    for (int i = 0; i < INPUTS; i++) {
        const Problem rows = i == Q || i == D_O ? c.p : keys_as_queries(&c.p);
        *tensors[i] = host_alloc(query_elements(&rows), sizeof(uint16_t));
        random_normal(DTYPE_FP16, *tensors[i], query_elements(&rows), 3, (uint32_t)i, 0, sizes[i]);
    }
    save(&c);
    return c;
}

/* dS is about 120,000, too much for fp16, where all gradients are small: K is, and Q is 0. Who keeps dS in fp32 is right. */
static void test_overflow(void) {
    Case c = known(64, 2, (const double[INPUTS]){0, 0.01, 200, 600});
    char options[300], *row;
    options_of(&c, options, sizeof options);
    run_program(&stage, options);
    int rounds = 0; /* whether any variant does */
    for (const Variant *v = stage.variants; v->name; v++)
        rounds |= strcmp(v->name, "fma") != 0;
    int wrong = run.code != rounds || largest_ds(&c) < 65520;
    for (const char *at = run.out; (at = strstr(at, "\"direction\": \"backward\"")); at++) {
        char variant[64], ok_field[8], note[500];
        for (row = (char *)at; row > run.out && row[-1] != '\n';)
            row--;
        field(row, "variant", ',', variant, sizeof variant);
        field(row, "ok", ',', ok_field, sizeof ok_field);
        field(row, "note", '"', note, sizeof note);
        int keeps = !strcmp(variant, "00_naive") || strstr(variant, "/fma");
        wrong += strcmp(ok_field, "null") && strcmp(ok_field, keeps ? "true" : "false");
        wrong += !strcmp(ok_field, "false") && !(strstr(note, "dS reaches ") && strstr(note, "choose a loss scale of 2^-"));
    }
    if (!ok(!wrong, "%s: dS beyond fp16 fails where it is rounded, with the reason and the cure, and nowhere else",
            stage.name))
        diag("exit code %d\n%s%s", run.code, run.out, run.err);
    free_case(&c);
}

/* dO so small that dQ and dK are below what P's and dS's steps leave: they are not checked, and dV decides. With dO = 0 nothing is. */
static void test_small(void) {
    static const char *const ends[] = {"; not checked: dQ, dK\n", "; not checked: dQ, dK\n",
                                       "NOT CHECKED  nothing checked in "};
    for (int i = 0; i < 3; i++) {
        Case c = known(256, 256, (const double[INPUTS]){1, 1, 1, i < 2 ? 3e-7 : 0});
        Stage with_zeros = with_mistake(0);
        char options[300];
        mistake.what = ZEROS, mistake.tensor = GRADIENT_Q;
        options_of(&c, options, sizeof options);
        *strstr(options, " --json") = 0;
        run_program(i == 1 ? &with_zeros : &stage, options);
        const char *last = strrchr(run.out, '\n') ? strstr(run.out, ends[i]) : NULL;
        if (!ok(run.code == (i < 2 ? 0 : 2) && last && (i || strstr(run.out, "dQ not checked, dK not checked, dV ")),
                "%s: dO %s", stage.name,
                i == 0   ? "of 3e-7, in fp16: dQ and dK are not checked"
                : i == 1 ? "of 3e-7: nor if dQ is 0, and it is said that they are not"
                         : "of 0: nothing is checked, exit code 2"))
            diag("exit code %d\n%s%s", run.code, run.out, run.err);
        free_case(&c);
    }
}

static long whole(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 0) {
        fprintf(stderr, "short: %s: choose a whole number\n", text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"fuzz", 1, 0, 'f'}, {"seed", 1, 0, 's'}, {"seconds", 1, 0, 't'},
                                            {"quick", 0, 0, 'q'}, {0, 0, 0, 0}};
    long count = getenv("TEST_ALL") ? 200 : 12, first = 0, seconds = 0;
    const time_t start = time(NULL);
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (option) {
        case 'f': count = whole(optarg); break;
        case 's': first = whole(optarg); break;
        case 't': seconds = whole(optarg); break;
        case 'q': break; /* few points, as for a grid: these are few */
        default: return 2;
        }
    const Problem any = {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 1, .seqlen_k = 1, .head_dim = 64};
    if (!is_taken(&any)) {
        tap_skip_all(variant_refuses(forward_of(&stage, &any), &any));
        return 0;
    }
    if (!mkdtemp(folder))
        abort();
    test_subnormal();
    test_overflow();
    test_small();
    for (long tried = 0; total.problems < count && !(seconds && time(NULL) - start >= seconds); tried++) {
        try_case((uint64_t)(first + tried));
        if (isatty(2))
            fprintf(stderr, "\r%s: %ld of %ld short problems ", stage.name, total.problems, count);
    }
    if (isatty(2))
        fprintf(stderr, "\r%70s\r", "");
    for (int i = 0; i < INPUTS; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
        unlink(path);
    }
    rmdir(folder);
    ok(!total.false_fail && total.right,
       "%s: %ld short problems (and %ld whose scores it refuses): %ld rows are right, %ld not "
       "checked, %ld fail because dS overflows, %ld for no good reason",
       stage.name, total.problems, total.refused, total.right, total.unchecked, total.overflow, total.false_fail);
    ok(!total.false_code, "%s: exit code 1 if one fails, else 2 if nothing of one is checked, else 0", stage.name);
    ok(!total.missed && (total.caught || count < 12),
       "%s: of the mistakes in them %ld are caught, %ld are in tensors that are not checked, %ld "
       "pass",
       stage.name, total.caught, total.excused, total.missed);
    for (int i = 0; i < TENSOR_COUNT; i++)
        for (int cause = 0; cause < CAUSES; cause++)
            if (total.causes[i][cause])
                printf("# %s not checked, %s: %ld\n", ALL_TENSORS[i], CAUSE_NAMES[cause], total.causes[i][cause]);
    free(run.out), free(run.err);
    return tap_done();
}
