/* errors.h - what a program says on stderr: what it is at, and why it cannot do what it was asked for; then its exit code is 2:
 *
 *     01_tiled: --dtype fp8: choose fp16|bf16|fp32
 */
#ifndef FA_ERRORS_H
#define FA_ERRORS_H

#ifdef __cplusplus
extern "C" {
#endif

/* The name that the lines begin with. It is kept, not copied. Without a name they begin with the text. */
void program_is(const char *name);

/* What the program is at: a line on stderr, in place of the one before. Nothing unless stderr is a terminal that can do that
 * (TERM=dumb says that it cannot). */
__attribute__((format(printf, 1, 2))) void show_progress(const char *text, ...);
void end_progress(void); /* wipes the line off; before anything else is printed */

/* Prints the name and the text as one line on stderr, and exits with code 2. */
__attribute__((format(printf, 1, 2), noreturn)) void cannot_run(const char *text, ...);

/* Ends the program in the same way unless all that was printed to stdout has been written. Also if stdout is closed: the next file
 * that is opened would take its place, and what is printed would go there. */
void flush_output(void);

#ifdef __cplusplus
}
#endif
#endif
