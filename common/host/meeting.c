/* meeting.c - see meeting.h.
 *
 * Each process locks the byte of its number in the file and holds that lock while it lives; the others watch it from a
 * thread. Number 0 empties the file and writes the message before it takes its lock, so a file that an earlier run has left
 * does no harm. */
#define _DEFAULT_SOURCE
#include "meeting.h"

#include "errors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATES = 512, MESSAGE = 1024, SECONDS = 60 }; /* offsets in the file; how long to wait for the others */

/* At STATES + its number. FAILED: why has been said. */
typedef enum { ABSENT, RUNNING, DONE, FAILED } State;

static int meeting, own, all;

static struct flock lock_of(int number) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
}

static int is_alive(int number) {
    struct flock lock = lock_of(number);
    return number == own || (fcntl(meeting, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
}

static State state_of(int number) {
    unsigned char state;
    return pread(meeting, &state, 1, STATES + number) == 1 ? (State)state : ABSENT;
}

static void write_there(const void *from, size_t bytes, off_t at) {
    if (pwrite(meeting, from, bytes, at) == (ssize_t)bytes)
        return;
    fprintf(stderr, "--rendezvous: process %d cannot write: %s\n", own, strerror(errno));
    _exit(2);
}

static void set_state(int number, State state) {
    const unsigned char byte = (unsigned char)state;
    write_there(&byte, 1, STATES + number);
}

static void *watch(void *unused) {
    for (;; usleep(200000)) {
        int speaker = 0; /* one line is enough */
        while (!is_alive(speaker))
            speaker++;
        for (int number = 0; number < all; number++) {
            const State state = state_of(number);
            if (is_alive(number) || state == DONE || (state != FAILED && speaker != own))
                continue;
            if (state != FAILED)
                fprintf(stderr, "process %d of %d has crashed or was killed, so the others end, too\n", number, all);
            set_state(number, FAILED), set_state(own, FAILED);
            _exit(2);
        }
    }
    return unused;
}

static void leave(int code, void *unused) {
    (void)unused;
    set_state(own, code == 2 ? FAILED : DONE);
}

static int has_come(int number) { return state_of(number) != ABSENT; }
static void wait_for(int number, int (*condition)(int)) {
    for (int tenths = 0; !condition(number); usleep(100000))
        if (tenths++ == 10 * SECONDS)
            cannot_run("--rendezvous: process %d of %d has not come within %d seconds", number, all, SECONDS);
}

void meet(const char *file, int number, int count, void *message, size_t bytes) {
    own = number, all = count;
    meeting = open(file, O_RDWR | O_CREAT | (number == 0 ? O_TRUNC : 0), 0600);
    if (meeting < 0)
        cannot_run("--rendezvous %s: %s: choose a file that all processes can write", file, strerror(errno));
    if (number == 0)
        write_there(message, bytes, MESSAGE);
    else
        wait_for(0, is_alive);
    struct flock lock = lock_of(number);
    if (fcntl(meeting, F_SETLK, &lock) < 0)
        cannot_run("--rendezvous %s: %s: choose a file that no other run uses, and that can be locked", file,
                   strerror(errno));
    set_state(number, RUNNING);
    on_exit(leave, NULL);
    for (int other = 0; other < count; other++)
        wait_for(other, has_come);
    pthread_t thread;
    if (pread(meeting, message, bytes, MESSAGE) != (ssize_t)bytes || pthread_create(&thread, NULL, watch, NULL) != 0)
        cannot_run("--rendezvous %s: cannot be read and watched", file);
}
