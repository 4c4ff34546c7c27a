/* meeting.h - processes of one run that meet in a file, on one host or on several that share it. */
#ifndef FA_MEETING_H
#define FA_MEETING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Waits for the others, of whom there are `count`, numbered from 0 on; all give the same file and are left with number 0's
 * `message`. From here on a process that ends before its time ends the others as well: one line on stderr, exit code 2. A process
 * that exits with code 2 has said why, and the others say nothing. Who does not come within a minute ends those who wait. */
void meet(const char *file, int number, int count, void *message, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
