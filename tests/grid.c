/* grid.c - every variant of one stage against the fp64 oracle, over shapes, masks, head groups, key lengths and inputs.
 *
 *     build/cpu/tests/grid_01_tiled [--quick] [--variant NAME] [--verbose]
 *     build/cpu/tests/grid_01_tiled --fuzz N [--seed S] [--seconds T] [--variant NAME]
 *
 * Linked once a stage against that stage's table (its main.c with main renamed); grid.h has the parts.
 *
 * The grid: a test point is one variant in one dtype, head dim and mask. Inside are pairs of the lengths below; heads, batch,
 * key lengths, the stage's own settings and the kind of input are drawn from the case's number, each on its own, so that any
 * two of them meet. Then a few long and wide cases; the same bits in any order of the threads; and a formula for the traffic.
 * --quick keeps every eighth of the pairs, for sanitizers and mutation tests, and ends soon after a case that is wrong;
 * GRID_EVERY=N in the environment keeps every N-th, with --quick if N is above 8. From 24 on, which is for what slows a kernel
 * down a hundred times, the pairs above 130 x 130 are left out, and three in four of the far scores. A GPU takes more pairs.
 * Of wrong cases three are printed, with --verbose all.
 *
 * The fuzz: N random problems for every variant, of the seeds S, S + 1, ... A wrong one is printed as the command that repeats
 * it.
 *
 * Wherever no key exists K and V hold NaN on the device, and so does the strip behind every allocation (device.h).
 */
#define _POSIX_C_SOURCE 200809L
#include "grid.h"
#include "../common/host/memory.h"
#include "../common/host/parallel.h"

#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    int quick, verbose;
    int every; /* pairs of lengths: one in so many */
    long fuzz; /* problems for each variant; 0: the grid */
    long seconds;
    uint64_t seed;
    const Variant *variants[MAX_VARIANTS + 1]; /* those asked for, behind what they are measured by */
    int first, count;                          /* those from `first` on are examined */
} grid = {.every = 1};

/* What became of one variant in the cases of one test point. */
typedef struct {
    int cases, wrong, refused;
    char reason[128]; /* of the first refusal */
} Tally;

/* ---- choosing ---- */

/* What is chosen for a case. Each has its own random numbers. */
enum { HEADS, BATCH, WITH_LENGTHS, INPUTS, GIVEN, NUMBER, SHAPE, SHIFT, SCALE, SETTING_0 = 20, LENGTH_0 = 1000 };

/* A number from 0 to count - 1, by the case and what it is for: bits mixed as in random.c. */
static unsigned pick(uint64_t number, int purpose, unsigned count) {
    uint64_t z = number * 0x9e3779b97f4a7c15 + (uint64_t)(purpose + 1) * 0xd1342543de82ef95;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (unsigned)((z ^ (z >> 31)) >> 32) % count;
}

/* Of the stage's settings that are numbers at most one is given, because they exclude each other; it is one of few: what
 * matters is none, one, some, and more than there are tiles. */
static void pick_settings(Problem *p, uint64_t number) {
    static const int numbers[] = {1, 2, 3, 7, 64, 200};
    int given = pick(number, GIVEN, 3);
    for (int i = 0; i < MAX_SETTINGS && stage.settings[i].name; i++) {
        const Setting *s = &stage.settings[i];
        int choices = 1, value = numbers[pick(number, NUMBER, 6)];
        for (const char *c = s->choices ? s->choices : s->max ? "" : "flag|"; *c; c++)
            choices += *c == '|';
        if (s->max > 0)
            p->settings[i] = given-- ? 0 : value < s->max ? value : s->max;
        else
            p->settings[i] = pick(number, SETTING_0 + i, choices);
    }
}

/* A block mask: of each kind one time in six, and none. */
static const Blocks *pick_blocks(const Problem *p, uint64_t number) {
    enum { KIND = 60, FIRST, SECOND, DOCUMENT = 2000 };
    static const int widths[] = {1, 7, 64, 127, 128, 129, 300}, percents[] = {0, 20, 50, 80, 100};
    const int first = widths[pick(number, FIRST, 7)], second = widths[pick(number, SECOND, 7)];
    char text[4096] = "";
    switch (pick(number, KIND, 6)) {
    case 0: return NULL;
    case 1: snprintf(text, sizeof text, "window:%d", first); break;
    case 2: snprintf(text, sizeof text, "sink:%d:%d", second, first); break;
    case 3: snprintf(text, sizeof text, "strided:%d", 1 + first % 4); break;
    case 4: snprintf(text, sizeof text, "random:%d.5:%d", percents[first % 5] * 199 / 200, second); break;
    default:
        snprintf(text, sizeof text, "documents:");
        for (int rest = p->seqlen_k, i = 0, length; rest > 0; rest -= length, i++) {
            length = i < 100 ? 1 + (int)pick(number, DOCUMENT + i, rest < 2 * first ? rest : 2 * first) : rest;
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? "+" : "", length);
        }
    }
    return stage.read_mask("blocks", text, p);
}

/* A score mod: none; each one alone, or with a sink; soft cap and window; all of them. The windows reach over no tile, one, and some; the
 * caps are so low that most scores are near them, and so high that none is. */
static const ScoreMod *pick_score(const Problem *p, uint64_t number) {
    enum { KIND = 70, LEFT, RIGHT, CAP };
    static const int sides[] = {0, 1, 7, 31, 64, 130, 300, 1000};
    static const char *const caps[] = {"0.5", "2", "30", "50.25", "1000"};
    const unsigned kind = pick(number, KIND, 12);
    char text[80] = "";
    if (kind == 0)
        return NULL;
    if (kind == 1 || kind == 2 || kind == 3 || kind >= 9)
        snprintf(text, sizeof text, "+softcap:%s", caps[pick(number, CAP, 5)]);
    if (kind == 4 || kind == 5 || kind >= 10)
        strcat(text, "+alibi");
    if (kind == 6 || kind == 7 || kind == 1 || kind == 2 || kind == 11)
        snprintf(text + strlen(text), sizeof text - strlen(text), "+window:%d,%d", sides[pick(number, LEFT, 8)],
                 sides[pick(number, RIGHT, 8)]);
    if (kind == 8 || kind == 2 || kind == 5 || kind == 7 || kind == 11)
        strcat(text, "+sink");
    return stage.read_score("score", text + 1, p);
}

/* Whether one of the settings is a number, so that pairs of lengths should meet several of them. */
static int has_numbers(void) {
    int has = 0;
    for (int i = 0; i < MAX_SETTINGS && stage.settings[i].name; i++)
        has |= stage.settings[i].max > 0;
    return has;
}

/* The stage's variants, those not asked for, too. 00_naive has none but what others are measured by. */
static int variant_count(void) {
    int count = 0;
    while (count < MAX_VARIANTS && stage.variants[count].name)
        count++;
    return count ? count : 1;
}
static const Variant *variant_at(int i) { return stage.variants[0].name ? &stage.variants[i] : reference(); }

/* The most queries that some variant takes. */
static int most_queries(void) {
    int most = 1;
    for (int i = 0; i < variant_count(); i++) {
        int takes = variant_at(i)->max_seqlen_q ? variant_at(i)->max_seqlen_q : MAX_SEQLEN;
        most = takes > most ? takes : most;
    }
    return most;
}

/* Inputs, key lengths (with them one time in two) and settings of a case whose shape is chosen. */
static Case case_of(Problem p, uint64_t number, int with_lengths) {
    Case c = {.p = p, .seed = number, .inputs = grid_kind.inputs[pick(number, INPUTS, grid_kind.input_count)]};
    pick_settings(&c.p, number);
    if (stage.read_mask)
        c.p.blocks = pick_blocks(&c.p, number);
    if (stage.read_score)
        c.p.score = pick_score(&c.p, number);
    if (c.inputs == PEAKED)
        c.p.scale *= grid_kind.peak;
    if (!with_lengths)
        return c;
    c.key_lengths = host_alloc(p.batch, sizeof *c.key_lengths);
    for (int b = 0; b < p.batch; b++) {
        int random = pick(number, LENGTH_0 + p.batch + b, p.seqlen_k + 1);
        int choices[] = {p.seqlen_k, 0, 1, (p.seqlen_k / 2) | 1, p.seqlen_k - 1, random};
        int length = choices[pick(number, LENGTH_0 + b, 6)];
        c.key_lengths[b] = length < p.seqlen_k ? length : p.seqlen_k;
    }
    return c;
}

/* ---- many cases ---- */

/* Why a variant cannot run the problem, or NULL: with what comes before it in a backward stage. */
static const char *refuses(const Variant *variant, const Problem *p) {
    const Variant *forward = forward_of(&stage, p);
    const char *reason = forward ? variant_refuses(forward, p) : NULL;
    return reason ? reason : variant_refuses(variant, p);
}

/* Whether anybody takes a problem who has not had `most` of them, known before it has cost anything. Notes refusals. */
static int is_taken(const Problem *p, Tally *tally, long most) {
    int takers = 0;
    for (int i = grid.first; i < grid.count; i++) {
        const char *reason = refuses(grid.variants[i], p);
        if (reason && !tally[i].refused++)
            snprintf(tally[i].reason, sizeof tally[i].reason, "%s", reason);
        takers += !reason && tally[i].cases < most;
    }
    return takers;
}

/* Every variant that takes it on one case. What they are measured by runs every time, though nobody may be counting it. */
static void run_case(Case *c, Tally *tally, long most) {
    open_case(c);
    for (int i = 0; i < grid.count; i++) {
        if (refuses(grid.variants[i], &c->p) || (i && tally[i].cases >= most))
            continue;
        tally[i].cases++;
        if (tally[i].wrong < 3 || grid.verbose) /* three examples are enough */
            tally[i].wrong += !try_variant(grid.variants[i], c);
    }
}

typedef struct {
    Case *cases;
    size_t count;
    Tally *tally;
    long most;
} Batch;
static void run_batch(size_t begin, size_t end, void *context) {
    Batch *b = context;
    (void)begin, (void)end;
    for (size_t i = 0; i < b->count; i++) {
        run_case(&b->cases[i], b->tally, b->most);
        close_case(&b->cases[i]);
    }
}

/* Runs and frees cases, the host's part of all of them in parallel. The device's part has one thread: a case is too small to
 * be compared by several. */
static void run_cases(Case *cases, size_t count, Tally *tally, long most) {
    parallel_for(count, prepare_cases, cases);
    parallel_for(1, run_batch, &(Batch){cases, count, tally, most});
}

enum { BATCH_SIZE = 64, ALL = 1 << 30 };
typedef struct {
    Case cases[BATCH_SIZE];
    size_t count;
    Tally tally[MAX_VARIANTS + 1];
} Point;

static int wrong_total(const Tally *tally) {
    int wrong = 0;
    for (int i = 0; i < grid.count; i++)
        wrong += tally[i].wrong;
    return wrong;
}

static void flush(Point *point) {
    if (!(grid.quick && !grid.verbose && wrong_total(point->tally)))
        run_cases(point->cases, point->count, point->tally, ALL);
    else
        for (size_t i = 0; i < point->count; i++)
            close_case(&point->cases[i]);
    point->count = 0;
}

static void add_case(Point *point, Case c) {
    if (!is_taken(&c.p, point->tally, ALL)) {
        close_case(&c);
        return;
    }
    point->cases[point->count++] = c;
    if (point->count == BATCH_SIZE)
        flush(point);
}

/* Prints the test points; of what others are measured by only if it is wrong. Returns 0 if there is nothing more to do. */
static int finish(Point *point, Tally *sum, const char *name) {
    flush(point);
    for (int i = 0; i < grid.count; i++) {
        const Tally *t = &point->tally[i];
        const Variant *v = grid.variants[i];
        if (i < grid.first && !t->wrong)
            continue;
        if (!t->cases && t->refused)
            ok(1, "%s/%s %s # SKIP %s", stage.name, v->name, name, t->reason);
        else if (t->cases)
            ok(!t->wrong, "%s/%s %s: %d cases%s%s", stage.name, v->name, name, t->cases,
               t->refused ? ", and some it refuses: " : "", t->reason);
        sum[i].cases += t->cases, sum[i].wrong += t->wrong;
        if (t->refused && !sum[i].refused++)
            memcpy(sum[i].reason, t->reason, sizeof t->reason);
    }
    int go_on = !(grid.quick && !grid.verbose && wrong_total(point->tally));
    memset(point, 0, sizeof *point);
    return go_on;
}

/* ---- the grid ---- */

/* All pairs of these, for D = 64 and fp16; fewer of the others. */
static int run_pairs(Point *point, Tally *sum) {
    static const int lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257, 509};
    static const int head_dims[] = {64, 128, 8, 32, 40, 96, 256}, heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {4, 1}, {2, 2}};
    enum { LENGTHS = sizeof lengths / sizeof *lengths, HEAD_DIMS = sizeof head_dims / sizeof *head_dims };
    const int is_cpu = device_properties()->is_cpu, rounds = has_numbers() ? 4 : 1, queries = most_queries();
    uint64_t number = 0;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int d = 0; d < HEAD_DIMS; d++)
            for (int causal = 0; causal < 2; causal++) {
                for (int index = 0; index < rounds * LENGTHS * LENGTHS; index++) {
                    const int seqlen_q = lengths[index / LENGTHS % LENGTHS], seqlen_k = lengths[index % LENGTHS];
                    const int pairs = seqlen_q * seqlen_k, large = pairs > 130 * 130, small = pairs <= 65 * 65;
                    number++;
                    /* D = 128 a third for each mask, the others a sixteenth. On the CPU a quarter of the large ones, and a
                     * quarter of the dtypes other than fp16, whose code differs in a conversion */
                    int every = grid.every * (d == 0 ? 1 : d == 1 ? 3 : 16);
                    if (is_cpu)
                        every *= (large ? 4 : 1) * (dtype == DTYPE_FP16 ? 1 : 4) * (stage.kind == BACKWARD ? 2 : 1);
                    if (seqlen_q > queries || (large && grid.every >= 24) || (index + causal + d) % every)
                        continue;
                    const int *h = heads[pick(number, HEADS, large ? 2 : small ? 5 : 3)]; /* few where they cost time */
                    Problem p = {.batch = small && pick(number, BATCH, 3) == 0 ? 3 : 1,
                                 .heads = h[0],
                                 .kv_heads = h[1],
                                 .seqlen_q = seqlen_q,
                                 .seqlen_k = seqlen_k,
                                 .head_dim = head_dims[d],
                                 .dtype = dtype,
                                 .causal = causal,
                                 .scale = (float)(1 / sqrt(head_dims[d]))};
                    add_case(point, case_of(p, number, pick(number, WITH_LENGTHS, 2)));
                }
                char name[64];
                snprintf(name, sizeof name, "%s D%d %s", dtype_name(dtype), head_dims[d], causal ? "causal" : "full");
                if (!finish(point, sum, name))
                    return 0;
            }
    return 1;
}

/* Decoding's long contexts and large batches, with key lengths; many heads, groups of them, in larger shapes. */
static void run_wide(Point *point, Tally *sum) {
    static const struct {
        int batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, causal;
    } shapes[] = {
        {1, 3, 3, 1, 5000, 64, 0},  {1, 2, 1, 2, 12000, 64, 1}, {1, 8, 4, 3, 700, 128, 1}, {90, 1, 1, 1, 40, 64, 1},
        {41, 2, 1, 16, 33, 128, 1}, {1, 6, 3, 65, 130, 64, 1},  {1, 8, 4, 70, 60, 128, 0}, {2, 4, 4, 129, 65, 64, 1},
        {1, 4, 1, 129, 200, 64, 0}, {1, 1, 1, 40, 1500, 96, 1}, {1, 1, 1, 700, 65, 32, 1}, {1, 2, 1, 100, 130, 256, 1},
        {1, 1, 1, 257, 257, 64, 1}, /* tiles of queries and keys end together */
        {3, 2, 2, 20, 140, 128, 0}, {7, 1, 1, 20, 140, 64, 0}, /* heads that no number of heads at a time divides */
        {1, 8, 1, 70, 140, 128, 1}, {1, 3, 1, 300, 100, 64, 0}, {2, 4, 2, 130, 70, 64, 0}, /* larger groups */
    };
    const int rounds = has_numbers() ? 4 : 1;
    for (size_t i = 0; i < rounds * sizeof shapes / sizeof *shapes; i++) {
        const int shape = i / rounds;
        if ((rounds > 1 && i % grid.every) || (grid.every > 8 && i % 2))
            continue;
        Problem p = {.batch = shapes[shape].batch,
                     .heads = shapes[shape].heads,
                     .kv_heads = shapes[shape].kv_heads,
                     .seqlen_q = shapes[shape].seqlen_q,
                     .seqlen_k = shapes[shape].seqlen_k,
                     .head_dim = shapes[shape].head_dim,
                     .causal = shapes[shape].causal,
                     .scale = (float)(1 / sqrt(shapes[shape].head_dim))};
        int is_long = p.seqlen_k >= 5000; /* dK and dV make them dear; a forward stage has its long row, too */
        if (p.seqlen_q <= most_queries() && (!is_long || has_numbers() || (grid.every == 1 && stage.kind != BACKWARD)))
            add_case(point, case_of(p, (uint64_t)1e6 + i, p.batch > 1 || i % 2));
    }
    finish(point, sum, "long and wide");
}

/* Where numbers end: scores below any number that a maximum may start from, and scales that are 0 once they are multiplied by
 * others. Masked rows and keys beside them, because -inf times 0 is NaN. And negative scores whose maximum rises from tile to tile by
 * more than P may grow in fp16, whichever way a kernel walks: a maximum that stays where it was makes P infinite. */
static void run_edges(Point *point, Tally *sum) {
    static const struct {
        Inputs inputs;
        Dtype dtype;
        float scale;
    } edges[] = {{FAR_BELOW, DTYPE_BF16, 1},   {FAR_BELOW, DTYPE_FP32, 1},   {NORMAL, DTYPE_FP16, 1e-44f},
                 {NORMAL, DTYPE_BF16, 1e-44f}, {NORMAL, DTYPE_FP32, 1e-44f}, {NORMAL, DTYPE_BF16, 1e-45f},
                 {RISING, DTYPE_FP16, 0.125f}, {SINKING, DTYPE_FP16, 0.125f}};
    for (size_t i = 0; i < 4 * sizeof edges / sizeof *edges; i++) {
        if (grid.every >= 24 && i % 4 != i / 4 % 4)
            continue; /* of each one: where a kernel reads and writes hangs on no score */
        Problem p = {.batch = 2,
                     .heads = 2,
                     .kv_heads = 1,
                     .seqlen_q = most_queries() < 40 ? most_queries() : 40,
                     .seqlen_k = 150,
                     .head_dim = 64,
                     .dtype = edges[i / 4].dtype,
                     .causal = i % 2,
                     .scale = edges[i / 4].scale};
        Case c = case_of(p, (uint64_t)2e6 + i, i % 4 / 2);
        c.inputs = edges[i / 4].inputs, c.p.scale = p.scale;
        add_case(point, c);
    }
    finish(point, sum, "far scores and scales");
}

/* Block masks and windows over several blocks each way, aligned and not: the pairs above are mostly smaller than two blocks. */
static void run_masks(Point *point, Tally *sum) {
    static const int shapes[][2] = {{300, 500}, {500, 300}, {257, 640}, {384, 384}};
    for (uint64_t i = 0; i < 64; i++) {
        Problem p = {.batch = 1, .heads = 1, .kv_heads = 1, .head_dim = i % 3 ? 64 : 128, .causal = i / 4 % 2};
        p.seqlen_q = shapes[i % 4][0], p.seqlen_k = shapes[i % 4][1];
        p.scale = (float)(1 / sqrt(p.head_dim));
        if ((i + i / 8) % grid.every == 0)
            add_case(point, case_of(p, (uint64_t)3e6 + i, i / 8 % 2));
    }
    finish(point, sum, stage.read_mask ? "block masks" : "windows");
}

/* One variant, and what it is measured by, on one case. */
static int try_one(Case *c, const Variant *v) {
    prepare_cases(0, 1, c);
    open_case(c);
    int right = try_variant(reference(), c) & (v == reference() || try_variant(v, c));
    close_case(c);
    return right;
}

/* A row over many keys with nearly equal scores: every P is about 127.4 of fp16's smallest steps, and what one of them loses,
 * all lose; V's mean shows it. 00_naive adds e^S in fp64 and gets more keys: every term is about 1, and a lane that adds 50,000
 * of them in fp32 loses as much as LSE may be off. With GRID_EVERY from 2 to 8 the last variant is asked alone, above 8 none. */
static void test_long_row(void) {
    int is_naive = !stage.variants[0].name;
    Case c = {.p = {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 1, .head_dim = 64}, .inputs = V_MEAN};
    c.p.seqlen_k = is_naive ? 201000 : 131689;
    c.p.scale = is_naive ? 1e-4f : 1e-5f;
    prepare_cases(0, 1, &c);
    open_case(&c);
    for (int i = 0; i < grid.count; i++) {
        if (i && i < grid.count - 1 && grid.every > 1)
            continue;
        int right = try_variant(grid.variants[i], &c);
        if (i >= grid.first || !right)
            ok(right, "%s/%s: %d keys with nearly equal scores", stage.name, grid.variants[i]->name, c.p.seqlen_k);
    }
    close_case(&c);
}

/* More tiles of 64 queries, or of 64 keys, than a grid has blocks in y or z. On the CPU device that would take minutes and 6 GB:
 * there the launches are only checked, and one that is refused ends the program. With a scale of 1 few keys decide. If all
 * did, a tensor core would add 16 products to O 262,144 times, and each time cut off what O's float cannot hold: O would be 0.6 %
 * too small (notes/floating_point.md). */
static void test_large_grid(const Variant *v, int seqlen_q, int seqlen_k) {
    Case c = {.p = {.batch = 1, .heads = 1, .kv_heads = 1, .head_dim = 64, .scale = 1}};
    const int is_cpu = device_properties()->is_cpu;
    c.p.seqlen_q = seqlen_q, c.p.seqlen_k = seqlen_k;
    if (refuses(v, &c.p) || (!is_cpu && (stage.kind == BACKWARD || grid.every > 1)))
        return;
    if (is_cpu) {
        char order[16];
        snprintf(order, sizeof order, "%s", getenv("CPU_DEVICE_ORDER") ? getenv("CPU_DEVICE_ORDER") : "forward");
        setenv("CPU_DEVICE_ORDER", "none", 1);
        v->launch(&c.p, &c.t, (Buffer[MAX_WORKSPACE_BUFFERS]){{0}});
        setenv("CPU_DEVICE_ORDER", order, 1);
    }
    ok(is_cpu || try_one(&c, v), "%s/%s: %d queries, %d keys", stage.name, v->name, seqlen_q, seqlen_k);
}

/* Nothing but what is declared so may depend on the order of threads and blocks. A GPU has an order of its own in every run. */
static void test_bits(const Variant *v) {
    Problem p = {.batch = 1,
                 .heads = 4,
                 .kv_heads = 2,
                 .seqlen_q = v->max_seqlen_q ? v->max_seqlen_q : 70,
                 .seqlen_k = 520, /* several key tiles: the order of two terms of a sum would not show */
                 .head_dim = v->head_dims[0] ? v->head_dims[0] : 64,
                 .causal = 1};
    p.scale = (float)(1 / sqrt(p.head_dim));
    while (p.dtype < DTYPE_COUNT && refuses(v, &p))
        p.dtype++;
    if (p.dtype == DTYPE_COUNT || v->unordered)
        return;
    Case c = {.p = p, .seed = 7};
    if (stage.read_mask)
        c.p.blocks = stage.read_mask("blocks", "window:200", &p);
    if (stage.read_score)
        c.p.score = stage.read_score("score", "softcap:2+window:200,0+sink", &p);
    prepare_cases(0, 1, &c);
    open_case(&c);
    void *first[MAX_OUTPUTS] = {0};
    static const char *const orders[] = {"forward", "reverse", "shuffle"};
    int is_cpu = device_properties()->is_cpu, runs = is_cpu ? 3 : 20, equal = 1, right = 1;
    try_variant(reference(), &c);
    for (int run = 0; run < runs; run++) {
        if (is_cpu)
            setenv("CPU_DEVICE_ORDER", orders[run], 1);
        right &= try_variant(v, &c);
        for (int i = 0; i < MAX_OUTPUTS && c.outputs[i].pointer; i++) {
            if (run == 0)
                first[i] = memcpy(host_alloc(c.outputs[i].bytes, 1), c.got[i], c.outputs[i].bytes);
            equal &= memcmp(first[i], c.got[i], c.outputs[i].bytes) == 0;
        }
    }
    ok(equal && right, "%s/%s: the same bits %s", stage.name, v->name,
       is_cpu ? "with threads forward, in reverse and shuffled" : "in 20 runs");
    for (int i = 0; i < MAX_OUTPUTS; i++)
        free(first[i]);
    close_case(&c);
}

/* A variant that nobody could test is an error, unless this device lacks what it is made for. */
static void test_variant(const Variant *v, const Tally *sum) {
    const DeviceProperties *device = device_properties();
    if (!sum->cases && v->uses & WGMMA && !device->has_hopper)
        ok(1, "%s/%s # SKIP %s", stage.name, v->name, sum->reason);
    else
        ok(sum->cases > 0, "%s/%s takes some of the problems%s%s", stage.name, v->name, sum->cases ? "" : ": ",
           sum->cases ? "" : sum->reason);
    ok(v->predict != NULL, "%s/%s has a formula for its traffic", stage.name, v->name);
}

static void run_grid(void) {
    static Point point;
    Tally sum[MAX_VARIANTS + 1] = {0};
    int go_on = run_pairs(&point, sum);
    if (go_on && stage.kind != BACKWARD)
        run_edges(&point, sum);
    if (go_on && (stage.read_mask || stage.read_score))
        run_masks(&point, sum);
    if (go_on && !grid.quick) {
        run_wide(&point, sum);
        if (stage.kind != BACKWARD && grid.every <= 8) /* dK and dV make long ones dear */
            test_long_row();
        for (int i = grid.first; i < grid.count; i++) {
            test_large_grid(grid.variants[i], 64 * 65535 + 1, 1);
            test_large_grid(grid.variants[i], 1, 64 * 65535 + 1);
            test_bits(grid.variants[i]);
        }
    }
    for (int i = grid.first; i < grid.count; i++)
        test_variant(grid.variants[i], &sum[i]);
}

/* ---- the fuzz ---- */

/* From 1 to `most`, small ones as often as large ones; half of the time one of those where tiles end. */
static int pick_length(uint64_t number, int purpose, int most) {
    static const int tiles[] = {16, 32, 64, 128};
    int length = (int)exp2(pick(number, purpose, 1 << 20) * 0x1p-20 * log2(most + 1.0));
    if (pick(number, purpose + 1, 2)) {
        int tile = tiles[pick(number, purpose + 2, 4)];
        length = (length + tile / 2) / tile * tile + (int)pick(number, purpose + 3, 3) - 1;
    }
    return length < 1 ? 1 : length > most ? most : length;
}

/* A random problem: it depends on the stage's table and the seed, and on no device or option.
 *
 * Where the domain ends, here and nowhere else:
 *     0 < scale           the programs take no other
 *     scale sqrt(D) from 2^-12 to 2^3 (with peaked inputs 6 times that)
 *                         below about 1e-38 it underflows once it is folded with others, and kernels give NaN; far above,
 *                         what rounding may do to a score is larger than the score that decides, and no result is wrong
 *     Q, K times 2^+-53 (bf16, fp32), 2^+-4 (fp16)
 *                         the one up, the other down, so that scores stay what they are: below -1e30 they are taken for
 *                         nothing by kernels that start from that maximum. A scale of 8 bits needs amax / 448 and its
 *                         inverse, so no K near 1e-38. With inputs that a variant rounds 2^+-4 in every dtype: one of
 *                         its formats may be fp16 without a scale
 *     V times 2^+-6       O and its gradients stay in fp16 */
static Case fuzz_case(uint64_t seed) {
    enum { DTYPE = 100, HEAD_DIM = 101, WORK = 102, QUERIES = 110, KEYS = 120, BATCHES = 130, V_SHIFT = 140 };
    const Variant *v = variant_at(pick(seed, SHAPE, variant_count()));
    Problem p = {.causal = pick(seed, GIVEN + 200, 2)};
    int dims = 0, most = most_queries(), rounds = 0;
    while (dims < 8 && v->head_dims[dims])
        dims++;
    p.head_dim = dims ? v->head_dims[pick(seed, HEAD_DIM, dims)] : 8 * (1 + (int)pick(seed, HEAD_DIM, 32));
    for (int skip = 0; !(v->dtypes >> (p.dtype = pick(seed, DTYPE + 300 + skip, DTYPE_COUNT)) & 1); skip++)
        ;
    int cap = (pick(seed, WORK, 16) ? 1 << 18 : 1 << 21) / p.head_dim; /* pairs of a query and a key */
    p.seqlen_q = pick_length(seed, QUERIES, most < 600 ? most : 600);
    p.seqlen_k = pick_length(seed, KEYS, cap / p.seqlen_q < 4096 ? cap / p.seqlen_q + 1 : 4096);
    cap /= p.seqlen_q * p.seqlen_k;
    p.kv_heads = 1 + pick(seed, HEADS, cap < 4 ? cap + 1 : 4);
    cap /= p.kv_heads;
    int group = 1 + pick(seed, HEADS + 400, cap < 8 ? cap + 1 : 8);
    p.heads = group * p.kv_heads;
    p.batch = pick_length(seed, BATCHES, cap / group < 1 ? 1 : cap / group < 90 ? cap / group : 90);
    p.scale = (float)(1 / sqrt(p.head_dim));
    if (pick(seed, SCALE, 2))
        p.scale *= (float)exp2((int)pick(seed, SCALE + 500, 16) - 12);
    Case c = case_of(p, seed, pick(seed, WITH_LENGTHS, 2));
    for (int other = 1; v->refuses && v->refuses(&c.p) && other < 20; other++)
        pick_settings(&c.p, seed + ((uint64_t)other << 48));
    for (int i = 0; i < variant_count(); i++)
        rounds |= variant_at(i)->preparation && variant_at(i)->preparation->values;
    int most_shift = rounds || p.dtype == DTYPE_FP16 ? 4 : 53;
    if (pick(seed, SHIFT, 4) == 0) {
        c.qk_shift = (int)pick(seed, SHIFT + 600, 2 * most_shift + 1) - most_shift;
        c.v_shift = (int)pick(seed, V_SHIFT, 13) - 6;
    }
    return c;
}

static void run_fuzz(void) {
    static Point point;
    Tally *tally = point.tally;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t seed = grid.seed;
    long tried = 0, fewest = 0, limit = 100 * grid.fuzz + 1000; /* for those who refuse all of them */
    while (fewest < grid.fuzz && tried < limit) {
        for (; point.count < BATCH_SIZE && tried < limit && (grid.fuzz > 1 || tried < 1); tried++) {
            Case c = fuzz_case(seed++);
            if (is_taken(&c.p, tally, grid.fuzz))
                point.cases[point.count++] = c;
            else
                close_case(&c);
        }
        run_cases(point.cases, point.count, tally, grid.fuzz);
        point.count = 0;
        fewest = grid.fuzz;
        for (int i = grid.first; i < grid.count; i++)
            fewest = tally[i].cases < fewest ? tally[i].cases : fewest;
        if (isatty(2))
            fprintf(stderr, "\r%s: %ld of %ld problems ", stage.name, fewest, grid.fuzz);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((grid.seconds && now.tv_sec - start.tv_sec >= grid.seconds) || grid.fuzz == 1)
            break;
    }
    if (isatty(2))
        fprintf(stderr, "\r%70s\r", "");
    for (int i = 0; i < grid.count; i++) {
        const Variant *v = grid.variants[i];
        if (i < grid.first && !tally[i].wrong)
            continue;
        if (!tally[i].cases && tried < limit) /* too few to tell that it takes none */
            ok(1, "%s/%s # SKIP it takes none of the %ld problems: %s", stage.name, v->name, tried, tally[i].reason);
        else if (!tally[i].cases)
            test_variant(v, &tally[i]);
        else
            ok(!tally[i].wrong, "%s/%s: %d random problems, of the seeds %llu to %llu", stage.name, v->name, tally[i].cases,
               (unsigned long long)grid.seed, (unsigned long long)seed - 1);
    }
}

/* ---- the command line ---- */

static long number_option(const char *name, const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 0) {
        fprintf(stderr, "grid: %s=%s: choose a whole number\n", name, text);
        exit(2);
    }
    return value;
}

static void read_options(int argc, char **argv) {
    static const struct option options[] = {{"quick", 0, 0, 'q'}, {"variant", 1, 0, 'v'}, {"verbose", 0, 0, 'w'},
                                            {"fuzz", 1, 0, 'f'},  {"seed", 1, 0, 's'},    {"seconds", 1, 0, 't'},
                                            {0, 0, 0, 0}};
    const char *only = NULL, *every = getenv("GRID_EVERY");
    if (every && *every)
        grid.every = (int)number_option("GRID_EVERY", every);
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'q': grid.quick = 1, grid.every = grid.every < 8 ? 8 : grid.every; break;
        case 'v': only = optarg; break;
        case 'w': grid.verbose = 1; break;
        case 'f': grid.fuzz = number_option("fuzz", optarg); break;
        case 's': grid.seed = number_option("seed", optarg); break;
        case 't': grid.seconds = number_option("seconds", optarg); break;
        default: exit(2);
        }
    }
    grid.variants[grid.count++] = reference();
    for (int i = 0; i < MAX_VARIANTS && stage.variants[i].name; i++)
        if (!only || strcmp(only, stage.variants[i].name) == 0)
            grid.variants[grid.count++] = &stage.variants[i];
    /* What others are measured by is examined in its own stage only: 00_naive, or the backward stage */
    grid.first = stage.kind == BACKWARD || !stage.variants[0].name ? 0 : 1;
    if (only && grid.count == 1 && strcmp(only, reference()->name) != 0) {
        fprintf(stderr, "grid: --variant %s: %s has no such variant\n", only, stage.name);
        exit(2);
    }
}

int main(int argc, char **argv) {
    /* As many cores on every host, even where fewer run them: a kernel whose blocks stay has a block for each, and what they share out
     * depends on that. */
    setenv("CPU_DEVICE_THREADS", "8", 0);
    read_options(argc, argv);
    fuzz_program = grid.fuzz ? argv[0] : NULL;
    if (grid.fuzz)
        run_fuzz();
    else
        run_grid();
    return tap_done();
}
