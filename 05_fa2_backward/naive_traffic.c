/* naive_traffic.c - the reference of 05_fa2_backward and 09_fa3_backward, and the bytes that it moves. */
#include "../common/traffic.h"

extern Launcher naive_backward;
extern Planner naive_backward_plan;

/* Nothing is kept: every product reads both its factors anew. */
static int naive_backward_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    double e = (double)dtype_bytes(p->dtype), product = (double)score_elements(p) * p->head_dim * e;
    double visible = visible_pairs(p, key_lengths), walked = visible * p->head_dim * e;
    double P_bytes = (double)score_elements(p) * e, dP_bytes = (double)score_elements(p) * 4; /* dS takes dP's place */
    double gradient_bytes = (double)key_elements(p) * e;
    const Traffic all[] = {
        {"naive_probabilities", "Q", walked, 0},
        {"naive_probabilities", "K", walked, 0},
        {"naive_probabilities", "dO", walked, 0},
        {"naive_probabilities", "V", walked, 0},
        {"naive_probabilities", "LSE", visible * 4, 0},
        {"naive_probabilities", "P", 0, P_bytes},
        {"naive_probabilities", "dP and dS", 0, dP_bytes},
        {"naive_delta", "O", query_bytes(p), 0},
        {"naive_delta", "dO", query_bytes(p), 0},
        {"naive_delta", "delta", 0, row_bytes(p)},
        {"naive_score_gradient", "delta", dP_bytes, 0},
        {"naive_score_gradient", "P", P_bytes, 0},
        {"naive_score_gradient", "dP and dS", dP_bytes, dP_bytes},
        {"naive_dq", "dP and dS", walked / e * 4, 0},
        {"naive_dq", "K", walked, 0},
        {"naive_dq", "dQ", 0, query_bytes(p)},
        {"naive_dk_dv", "dP and dS", product / e * 4, 0},
        {"naive_dk_dv", "Q", product, 0},
        {"naive_dk_dv", "P", product, 0},
        {"naive_dk_dv", "dO", product, 0},
        {"naive_dk_dv", "dK", 0, gradient_bytes},
        {"naive_dk_dv", "dV", 0, gradient_bytes},
    };
    int i = list_traffic(traffic, all, sizeof all / sizeof *all);
    if (p->score) {
        traffic[i++] = (Traffic){"naive_probabilities", "f'(S)", 0, dP_bytes};
        traffic[i++] = (Traffic){"naive_score_gradient", "f'(S)", dP_bytes, 0};
    }
    if (p->score && p->score->score.sinks) {
        traffic[i++] = (Traffic){"naive_sink_gradient", "delta", row_bytes(p), 0};
        traffic[i++] = (Traffic){"naive_sink_gradient", "LSE", row_bytes(p), 0};
        traffic[i++] = (Traffic){"naive_sink_gradient", "sinks", row_bytes(p), 0};
        traffic[i++] = (Traffic){"naive_sink_gradient", "dsinks", 0, 4.0 * p->heads};
    }
    return i;
}

const Variant naive_gradients = {
    .name = "00_naive",
    .idea = "the definition: one thread per output, P and dS in device memory",
    .launch = naive_backward,
    .plan = naive_backward_plan,
    .predict = naive_backward_traffic,
    .dtypes = FP16 | BF16 | FP32,
};
