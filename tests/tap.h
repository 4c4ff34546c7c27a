/* tap.h - Test Anything Protocol for the C and CUDA tests: prove reads what these print.
 *
 *     int main(void) { ok(1 + 1 == 2, "one and one"); return tap_done(); }
 */
#ifndef FA_TAP_H
#define FA_TAP_H

#include <stdarg.h>
#include <stdio.h>

static int tap_count, tap_failed;

/* One test point: prints "ok" or "not ok" with its name. Returns `pass`, so that a caller can add what it saw. */
__attribute__((format(printf, 2, 3))) static inline int ok(int pass, const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    printf("%sok %d - ", pass ? "" : "not ", ++tap_count);
    vprintf(name, arguments);
    printf("\n");
    va_end(arguments);
    tap_failed += !pass;
    return pass;
}

/* A line of explanation, shown by prove --verbose and after a failure. */
__attribute__((format(printf, 1, 2))) static inline void diag(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    fflush(stdout);
    fprintf(stderr, "# ");
    vfprintf(stderr, text, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

static inline void tap_skip_all(const char *reason) { printf("1..0 # SKIP %s\n", reason); }

/* Prints the plan; the exit code for main. */
static inline int tap_done(void) {
    printf("1..%d\n", tap_count);
    return tap_failed ? 1 : 0;
}

#endif
