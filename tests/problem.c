/* problem.c - tests of common/problem.h: the mask against counting keys one by one, and sizes and offsets beyond 2^31, where a
 * product taken in ints would wrap. Arithmetic alone, nothing is allocated. */
#include "../common/problem.h"
#include "tap.h"

/* The same in steps of one, so that no product is taken at all: elements before head (batch, head) of [batch, heads, a, b]. */
static uint64_t count_up(int batch, int heads, int rows, int columns, int to_batch, int to_head) {
    uint64_t matrix = 0, elements = 0;
    for (int row = 0; row < rows; row++)
        matrix += columns;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++) {
            if (b == to_batch && h == to_head)
                return elements;
            elements += matrix;
        }
    return elements; /* of the whole tensor */
}

static void test_large(void) {
    /* Q has 2^33.2 elements, K 2^32.6, S 2^49; the head offsets pass 2^31 and 2^32 in between. */
    Problem p = {.batch = 3, .heads = 12, .kv_heads = 4, .seqlen_q = 1000003, .seqlen_k = 2000003, .head_dim = 256};
    int wrong = 0;
    for (int b = 0; b < p.batch; b++)
        for (int h = 0; h < p.heads; h++) {
            wrong += query_head_offset(&p, b, h) != count_up(3, 12, 1000003, 256, b, h);
            RowIndex last = row_index(&p, query_head_offset(&p, b, h) / 256 + 1000002);
            wrong += last.batch != b || last.head != h || last.row != 1000002;
            wrong += flat_row(&p, last) != query_head_offset(&p, b, h) / 256 + 1000002;
            if (h < p.kv_heads)
                wrong += key_head_offset(&p, b, h) != count_up(3, 4, 2000003, 256, b, h);
        }
    ok(!wrong, "offsets of heads beyond 2^31 elements, and back from a row to its head");
    ok(query_elements(&p) == count_up(3, 12, 1000003, 256, -1, -1) &&
           key_elements(&p) == count_up(3, 4, 2000003, 256, -1, -1),
       "elements of Q and K beyond 2^31");
    ok(row_count(&p) == 36000108 && score_elements(&p) == 72000324000324, "rows, and elements of S");
    p = (Problem){.batch = 70, .heads = 70, .kv_heads = 70, .seqlen_q = 1 << 30, .seqlen_k = 1 << 30, .head_dim = 256};
    ok(row_count(&p) == 4900ull << 30 && query_elements(&p) == 4900ull << 38 && key_head_offset(&p, 69, 69) == 4899ull << 38,
       "the longest sequence");
    ok(score_elements(&(Problem){.batch = 1, .heads = 4, .seqlen_q = 1 << 28, .seqlen_k = 1 << 28}) == 1ull << 58,
       "the largest S that a program takes");
}

static void test_mask(void) {
    int wrong = 0, cut = 0;
    for (int causal = 0; causal < 2; causal++)
        for (int queries = 1; queries < 8; queries++)
            for (int length = 0; length < 8; length++)
                for (int row = 0; row < queries; row++) {
                    Problem p = {.seqlen_q = queries, .seqlen_k = 8, .causal = causal};
                    int seen = 0;
                    for (int column = 0; column < length; column++)
                        seen += !causal || column <= row + (length - queries);
                    wrong += visible_keys(&p, length, row) != seen;
                    cut += seen == 0;
                }
    ok(!wrong && cut > 0, "the mask, counted key by key, with key lengths shorter than the keys");
    Problem p = {.seqlen_q = 1 << 30, .seqlen_k = 1 << 30, .causal = 1};
    ok(visible_keys(&p, 0, (1 << 30) - 1) == 0 && visible_keys(&p, 1 << 30, (1 << 30) - 1) == 1 << 30 &&
           visible_keys(&p, 1, 0) == 0,
       "the mask at both ends of the longest sequence");
}

static void test_groups(void) {
    int wrong = 0, lengths[] = {5, 0, 7};
    for (int kv_heads = 1; kv_heads < 5; kv_heads++)
        for (int group = 1; group < 5; group++) {
            Problem p = {.heads = kv_heads * group, .kv_heads = kv_heads, .seqlen_k = 9};
            for (int head = 0; head < p.heads; head++) /* the last group that begins at or before this head */
                wrong += !(kv_head_of(&p, head) * group <= head && head < (kv_head_of(&p, head) + 1) * group);
            for (int b = 0; b < 3; b++)
                wrong += key_length(&p, lengths, b) != lengths[b] || key_length(&p, NULL, b) != 9;
        }
    ok(!wrong, "groups of heads; key lengths, and none");
}

int main(void) {
    test_large();
    test_mask();
    test_groups();
    return tap_done();
}
