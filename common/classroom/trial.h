/* trial.h - a stage with one of its files replaced, built in a copy of the tree; and the simplest problem on which it is wrong.
 *
 *     Trial t = {.name = "04.4", .stage = "04_fa2", .variant = "tuned", .file = "04_fa2/tuned.cu", .by = "exercises/04.4/tuned.cu"};
 *     const char *folder = trial_build(&t, "cpu", out, "04_fa2/04_fa2 tests/grid_04_fa2");
 *     Failure f = trial_failure(&t, "cpu", out, 0);
 *
 * The copy is the folder <out>-scratch/<name>. What is built of the rest of the tree comes along, so that make compiles only what
 * the file touches. The tree itself is never changed. */
#ifndef FA_TRIAL_H
#define FA_TRIAL_H

typedef struct {
    const char *name, *stage;
    const char *variant;   /* the one that the grid shall try; NULL: all */
    const char *file, *by; /* the file in the tree, and the one that takes its place; NULL: nothing is replaced */
    const char *error;     /* by trial_build: the compiler's first error, or NULL */
} Trial;

/* Builds programs, named as under the build's folder and with a space between, for device_words, make's DEVICE and more ("cpu
 * TRACE=1"). `out`: where make builds for these. Returns the folder that they are in; NULL if they do not compile. */
const char *trial_build(Trial *t, const char *device_words, const char *out, const char *programs);

/* How a stage is wrong. All NULL: no check sees anything. */
typedef struct {
    const char *seen_by; /* what saw it: "the stage's program", "the grid" */
    const char *right;   /* the last problem that was right before, in words; or NULL */
    const char *problem; /* the first that is wrong, in words, or "" */
    const char *command; /* that repeats it */
    const char *said;    /* lines: which elements of which tensors are wrong, or why the device stopped */
} Failure;

/* Small problems for the stage's program, from the simplest on; then the grid, in two orders of the threads; with `whole` all of
 * the grid. Builds both; t->error says if that cannot be done. */
Failure trial_failure(Trial *t, const char *device, const char *out, int whole);

#endif
