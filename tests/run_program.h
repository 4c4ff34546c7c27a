/* run_program.h - a stage's whole program, run on options: its exit code, and what it says.
 *
 *     run_program(&stage, "--seqlen 64 --json");     run.code, run.out, run.err
 */
#ifndef FA_RUN_PROGRAM_H
#define FA_RUN_PROGRAM_H

#include "../common/device/device.h"
#include "../common/stage.h"
#include "capture.h"

static struct {
    const Stage *stage;
    char *argv[64];
    int argc, code;
    char *out, *err;
    int leaks; /* runs so far that did not give back all device memory */
} run;

static inline void call_program(void *context) {
    (void)context;
    run.code = harness_main(run.stage, run.argc, run.argv);
    run.leaks += device_allocated() != 0;
}
static inline void keep_errors(void *context) { run.err = captured(STDERR_FILENO, call_program, context); }

static inline void run_program(const Stage *stage, const char *options) {
    char text[4096];
    snprintf(text, sizeof text, "%s", options);
    run.stage = stage;
    run.argc = words_of(text, run.argv, 64);
    free(run.out), free(run.err);
    run.out = captured(STDOUT_FILENO, keep_errors, NULL);
}

#endif
