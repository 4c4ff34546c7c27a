/* meeting.c - processes that meet in a file: all get number 0's message, and none outlives one that has failed. */
#define _GNU_SOURCE
#include "../common/host/meeting.h"
#include "../common/host/errors.h"
#include "capture.h"
#include "tap.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { COUNT = 3 };
typedef enum { ENDS, FAILS, CANNOT_RUN, IS_KILLED } End;

typedef struct {
    const char *file;
    int special; /* who ends in the way of `end`; the others run for a while, and end with exit code 0 */
    End end;
    int codes[COUNT]; /* what became of them; minus a signal's number */
} Run;

static void child(const Run *run, int number) {
    char message[8] = {(char)('a' + number)};
    usleep(50000 * (unsigned)(COUNT - number)); /* number 0 comes last */
    meet(run->file, number, COUNT, message, sizeof message);
    if (message[0] != 'a')
        _exit(9);
    if (number != run->special) {
        for (int tenths = 0; run->special >= 0 && run->end != ENDS && run->end != FAILS && tenths < 100; tenths++)
            usleep(100000);
        usleep(300000);
        exit(0);
    }
    switch (run->end) {
    case ENDS: exit(0);
    case FAILS: exit(1);
    case CANNOT_RUN: cannot_run("a reason");
    case IS_KILLED: kill(getpid(), SIGKILL);
    }
}

static void run_all(void *context) {
    Run *run = context;
    pid_t children[COUNT];
    for (int i = 0; i < COUNT; i++) {
        children[i] = fork();
        if (children[i] == 0)
            child(run, i);
    }
    for (int i = 0; i < COUNT; i++) {
        int status;
        waitpid(children[i], &status, 0);
        run->codes[i] = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    }
}

static void ends_so(const char *file, int special, End end, int code, int others, const char *want, const char *name) {
    Run run = {.file = file, .special = special, .end = end};
    char *said = captured(STDERR_FILENO, run_all, &run);
    int fits = strcmp(said, want) == 0;
    for (int i = 0; i < COUNT; i++)
        fits &= run.codes[i] == (i == special ? code : others);
    if (!ok(fits, "%s", name))
        diag("exit codes %d %d %d, said: %s", run.codes[0], run.codes[1], run.codes[2], said);
    free(said);
}

int main(void) {
    char folder[] = "/tmp/meeting.XXXXXX", file[64];
    if (!mkdtemp(folder))
        return 1;
    snprintf(file, sizeof file, "%s/file", folder);
    ends_so(file, -1, ENDS, 0, 0, "", "all get the message of the first");
    ends_so(file, -1, ENDS, 0, 0, "", "the file of an earlier run does no harm");
    ends_so(file, 1, ENDS, 0, 0, "", "one that ends early leaves the others alone");
    ends_so(file, 0, FAILS, 1, 0, "", "also with a bad verdict");
    ends_so(file, 2, CANNOT_RUN, 2, 2, "a reason\n", "one that cannot run ends all, and alone says why");
    for (int i = 0; i < COUNT; i++) {
        char want[96];
        snprintf(want, sizeof want, "process %d of 3 has crashed or was killed, so the others end, too\n", i);
        ends_so(file, i, IS_KILLED, -SIGKILL, 2, want, "one that is killed ends all, in one line");
    }
    ends_so("/no/such/file", -1, ENDS, 2, 2,
            "--rendezvous /no/such/file: No such file or directory: choose a file that all processes can write\n"
            "--rendezvous /no/such/file: No such file or directory: choose a file that all processes can write\n"
            "--rendezvous /no/such/file: No such file or directory: choose a file that all processes can write\n",
            "a file that cannot be made");
    unlink(file), rmdir(folder);
    return tap_done();
}
