/* task.c - see task.h. */
#include "task.h"

const Task *task_of(const Stage *stage) {
    return stage->kind == BACKWARD ? &backward_task : stage->kind == DECODING ? &decoding_task : &forward_task;
}
