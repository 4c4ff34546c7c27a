/* lab.h - what passes between the judge of a lab and the student's program, which are two processes.
 *
 * The judge (judge.c) draws the inputs and knows what is right. The student's program (run.c, and the lab's host.cu with the
 * student's kernel) gets a problem and its inputs on stdin, launches the kernel once and writes the outputs to stdout. So the code
 * that is judged never shares memory with the code that judges, and a crash or an endless loop ends one problem only.
 *
 *     stdin      Request, key lengths and sinks if there are any, then the inputs of lab_tensors
 *     stdout     the outputs of lab_tensors; then, as JSON rows, of a program built with TRACE=1 what the trace counted, and of one for
 *                a GPU how long a launch takes
 */
#ifndef FA_LAB_H
#define FA_LAB_H

#include "../stage.h"

typedef struct {
    Problem p;
    int is_backward, has_lengths, has_sinks;
    int window;  /* of the block mask; 0: there is none */
    Score score; /* without its pointer; all zero: there is no score mod */
} Request;

typedef enum { LAB_INPUT, LAB_KEYS, LAB_OUTPUT } LabRole; /* LAB_KEYS: an input with a row for each key */
typedef struct {
    const char *name;
    size_t place; /* offsetof its pointer in Tensors */
    size_t bytes;
    LabRole role;
} LabTensor;

/* An output is full of this before the kernel runs: a NaN in every dtype, and not the one that arithmetic makes of fresh memory's 0xff. */
enum { LAB_UNTOUCHED = 0x7fa5 };

enum { LAB_MOST_TENSORS = 9 };

/* Fills in the tensors in the order in which they are sent; returns how many. */
static inline int lab_tensors(const Problem *p, int is_backward, LabTensor *all) {
    const size_t element = dtype_bytes(p->dtype), q = query_elements(p) * element, k = key_elements(p) * element;
    const size_t rows = row_count(p) * sizeof(float);
    const LabTensor tensors[LAB_MOST_TENSORS] = {
        {"Q", offsetof(Tensors, q), q, LAB_INPUT},
        {"K", offsetof(Tensors, k), k, LAB_KEYS},
        {"V", offsetof(Tensors, v), k, LAB_KEYS},
        {"O", offsetof(Tensors, o), q, is_backward ? LAB_INPUT : LAB_OUTPUT},
        {"LSE", offsetof(Tensors, lse), rows, is_backward ? LAB_INPUT : LAB_OUTPUT},
        {"dO", offsetof(Tensors, d_o), q, LAB_INPUT},
        {"dQ", offsetof(Tensors, dq), q, LAB_OUTPUT},
        {"dK", offsetof(Tensors, dk), k, LAB_OUTPUT},
        {"dV", offsetof(Tensors, dv), k, LAB_OUTPUT},
    };
    const int count = is_backward ? LAB_MOST_TENSORS : 5;
    for (int i = 0; i < count; i++)
        all[i] = tensors[i];
    return count;
}
static inline void **lab_pointer(Tensors *all, const LabTensor *tensor) { return (void **)((char *)all + tensor->place); }

/* ---- what a lab's host.cu defines ---- */

#ifdef __cplusplus
extern "C" {
#endif
extern Launcher lab_launch;
extern Planner lab_plan;
#ifdef __cplusplus
}
#endif

#endif
