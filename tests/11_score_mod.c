/* 11_score_mod.c - score mods: what --score SPEC says, windows counted by hand, and ranges and slopes of kernels and formulas against
 * the oracle's, which reads SPEC by itself.
 */
#include "../common/judge/oracle.h"
#include "../common/score.h"
#include "../common/stage.h"
#include "../common/traffic.h"
#include "tap.h"

#include <stdlib.h>

extern ScoreReader score_read;

static void test_reader(void) {
    Problem p = {.heads = 5};
    const ScoreMod *all = score_read("score", "window:1024,0+sink+softcap:30.5+alibi", &p), *one = score_read("score", "alibi", &p);
    const Score *s = &all->score;
    ok(s->window && s->left == 1024 && s->right == 0 && s->sinks && s->softcap == 30.5f && s->alibi, "all four, in any order");
    s = &one->score;
    ok(!s->window && !s->sinks && s->softcap == 0 && s->alibi, "one, and nothing else");
    p.heads = 9;
    const ScoreMod *more = score_read("score", "sink", &p);
    int same = 1;
    for (int head = 0; head < 5; head++)
        same &= more->score.sinks[head] == all->score.sinks[head] && (head == 0 || more->score.sinks[head] != more->score.sinks[head - 1]);
    ok(same, "a head's sink depends on its number alone");
    free((void *)all), free((void *)one), free((void *)more);
}

/* Pairs of Sq x Sk that a window leaves, by hand. With key lengths L. */
static void test_counts(void) {
    static const struct {
        const char *text;
        int seqlen_q, seqlen_k, causal, length;
        double pairs;
    } cases[] = {
        {"window:0,0", 300, 300, 0, 300, 300},
        {"window:4,0", 300, 300, 1, 300, 300 * 5 - (4 + 3 + 2 + 1)},
        {"window:4,7", 300, 300, 1, 300, 300 * 5 - (4 + 3 + 2 + 1)},
        {"window:4,1", 300, 300, 0, 300, 300 * 6 - (4 + 3 + 2 + 1) - 1},
        {"window:255,0", 1024, 1024, 1, 1024, 229504}, /* of notes/11_score_mod.md */
        {"window:2,0", 3, 9, 0, 9, 3 * 3},             /* the last three positions */
        {"window:1,1", 9, 3, 0, 3, 1 + 2 + 3 + 2},     /* six queries before the first key, of which the last sees it */
        {"window:536870912,536870912", 7, 9, 0, 5, 7 * 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Problem p = {.batch = 1, .heads = 1, .kv_heads = 1, .causal = cases[i].causal};
        p.seqlen_q = cases[i].seqlen_q, p.seqlen_k = cases[i].seqlen_k;
        p.score = score_read("score", cases[i].text, &p);
        double pairs = visible_pairs(&p, &cases[i].length);
        if (!ok(pairs == cases[i].pairs, "%s: pairs of %d x %d, %d keys%s", cases[i].text, p.seqlen_q, p.seqlen_k, cases[i].length,
                p.causal ? ", causal" : ""))
            diag("%.0f, expected %.0f", pairs, cases[i].pairs);
        free((void *)p.score);
    }
}

static int next(int below) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)below);
}

/* Of random problems every pair: whether a row sees a key, and whether a tile of keys counts the row among its queries. No query at
 * either end of those is there for nothing. */
static void test_ranges(void) {
    int wrong_keys = 0, wrong_queries = 0;
    for (int round = 0; round < 200; round++) {
        Problem p = {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 1 + next(60), .seqlen_k = 1 + next(60), .causal = round % 2};
        int length = round % 3 ? p.seqlen_k : next(p.seqlen_k + 1), first = next(p.seqlen_k), end = first + 1 + next(20);
        char text[40];
        snprintf(text, sizeof text, "window:%d,%d", next(30), next(30));
        p.score = score_read("score", round % 5 ? text : "alibi", &p);
        end = end < length ? end : length;
        Range queries = seeing_queries(&p.score->score, &p, length, first, end);
        int seen_begin = p.seqlen_q, seen_end = 0;
        for (int row = 0; row < p.seqlen_q; row++) {
            Range keys = seen_keys(&p.score->score, &p, length, row);
            int any = 0;
            for (int key = 0; key < p.seqlen_k; key++) {
                int sees = oracle_sees(&p, &length, 0, row, key) && oracle_keeps(&p, &length, 0, row, key);
                wrong_keys += sees != (key >= keys.begin && key < keys.end);
                any |= sees && key >= first && key < end;
            }
            seen_begin = any && row < seen_begin ? row : seen_begin;
            seen_end = any ? row + 1 : seen_end;
        }
        if (seen_begin < seen_end)
            wrong_queries += queries.begin != seen_begin || queries.end != seen_end;
        free((void *)p.score);
    }
    ok(!wrong_keys, "the keys that a row sees, as the oracle says");
    ok(!wrong_queries, "the queries that see a tile of keys");
}

/* Those that the authors' code prints for 8 and 12 heads; of others, as the oracle says. */
static void test_slopes(void) {
    int wrong = 0;
    for (int head = 0; head < 8; head++)
        wrong += alibi_slope(8, head) != ldexpf(1, -1 - head) || alibi_slope(12, head) != ldexpf(1, -1 - head);
    for (int head = 8; head < 12; head++)
        wrong += fabsf(alibi_slope(12, head) - ldexpf(sqrtf(0.5f), 8 - head)) > 1e-7f;
    ok(!wrong, "the slopes of 8 heads, and of 12");
    for (int heads = 1; heads < 40; heads++) {
        Problem p = {.batch = 1, .heads = heads, .kv_heads = 1, .seqlen_q = 1, .seqlen_k = 2};
        p.score = score_read("score", "alibi", &p);
        for (int head = 0; head < heads; head++) {
            double slope = -oracle_score(&p, NULL, (RowIndex){0, head, 0}, 0, 0).value; /* one key away */
            wrong += fabs(alibi_slope(heads, head) - slope) > 1e-6 * slope;
        }
        free((void *)p.score);
    }
    ok(!wrong, "of up to 39 heads");
}

int main(void) {
    test_reader();
    test_counts();
    test_ranges();
    test_slopes();
    return tap_done();
}
