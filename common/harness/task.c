/* task.c - see task.h. */
#include "task.h"

const Task *task_of(const Stage *stage) {
    return stage->forward ? &backward_task : stage->bytes ? &decoding_task : &forward_task;
}
