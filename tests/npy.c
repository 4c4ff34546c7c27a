/* npy.c - tests of common/host/npy.h: what it writes it can read, what others write it can read, and everything else it refuses
 * with a sentence, leaving no half-written file behind.
 */
#define _POSIX_C_SOURCE 200809L

#include "../common/host/npy.h"
#include "../common/numeric.h"
#include "capture.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/npy_test_XXXXXX";
static char path[64]; /* of the file most tests use */

static int files_in_folder(void) {
    int files = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));)
        files += entry->d_name[0] != '.';
    closedir(dir);
    return files;
}

/* What may fail, or be interrupted, while files are saved: this executable's own come before the library's. The call that makes
 * `calls_left` 0 raises `signal_then`, or fails if that is 0. */
static int calls_left, signal_then;

static int happens(void) {
    if (calls_left == 0 || --calls_left)
        return 0;
    errno = EIO;
    return signal_then ? raise(signal_then) : -1;
}
int fsync(int file) { return happens() ? -1 : fdatasync(file); }
int rename(const char *from, const char *to) { return happens() ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to); }
int unlink(const char *name) { return signal_then && happens() ? -1 : unlinkat(AT_FDCWD, name, 0); }

static HostArray file_of(const char *name, Dtype dtype, int dims, const size_t *shape, const void *data) {
    HostArray file = {name, (ArrayType)dtype, dims, {0}, (void *)data};
    memcpy(file.shape, shape, (size_t)dims * sizeof *shape);
    return file;
}
static void write_it(void *file) { npy_write("save", folder, file, 1); }
static void read_it(void *with_data) { npy_read("load", folder, "tensor.npy", *(int *)with_data); }

static int has_shape(const HostArray *npy, const size_t *shape) { return memcmp(npy->shape, shape, 4 * sizeof *shape) == 0; }

static void test_round_trip(void) {
    const size_t shape[] = {3, 1, 1337, 2}, count = 3 * 1337 * 2;
    const Dtype dtypes[] = {DTYPE_FP16, DTYPE_BF16, DTYPE_FP32};
    for (int t = 0; t < 3; t++) {
        Dtype dtype = dtypes[t];
        void *data = malloc(count * 4);
        for (size_t i = 0; i < count; i++)
            dtype_store(dtype, data, i, sin((double)i) * exp(0.001 * (double)i));
        HostArray file = file_of("tensor.npy", dtype, 4, shape, data);
        write_it(&file);
        HostArray back = npy_read("load", folder, "tensor.npy", 1);
        int same = array_count(&back) == count && back.type == (dtype == DTYPE_FP16 ? ARRAY_FP16 : ARRAY_FP32);
        for (size_t i = 0; i < count && same; i++)
            same = npy_get(&back, i) == dtype_to_double(dtype, data, i);
        ok(same && has_shape(&back, shape), "%s: the same shape and numbers", dtype_name(dtype));
        free(back.data);
        back = npy_read("load", folder, "tensor.npy", 0);
        ok(has_shape(&back, shape) && array_count(&back) == count && !back.data, "%s: the header alone", dtype_name(dtype));
        free(data);
    }
    ok(files_in_folder() == 1, "no temporary file is left");

    /* Byte by byte what NumPy writes for numpy.save("x.npy", numpy.float16([1, 2])), and of [[1, 2]]. */
    const uint16_t pair[] = {0x3c00, 0x4000};
    const char *headers[] = {"{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }",
                             "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2), }"};
    for (int dims = 1; dims <= 2; dims++) {
        HostArray small = file_of("tensor.npy", DTYPE_FP16, dims, &(size_t[]){1, 2}[2 - dims], pair);
        write_it(&small);
        char file[200];
        FILE *in = fopen(path, "rb");
        size_t length = fread(file, 1, sizeof file, in);
        fclose(in);
        char expected[133];
        memcpy(expected, "\x93NUMPY\1\0\x76\0", 10); /* 0x76: 118 bytes of header, up to byte 128 */
        snprintf(expected + 10, 119, "%-117s\n", headers[dims - 1]);
        memcpy(expected + 128, pair, 4);
        ok(length == 132 && memcmp(file, expected, 132) == 0, "%d dimensions: the bytes NumPy itself would write", dims);
    }
}

/* Writes a file by hand: version, header text as given, then the data. */
static void hand_made(int version, const char *header, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    size_t length = strlen(header);
    unsigned char start[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', version, 0, length & 0xff, length >> 8 & 0xff};
    fwrite(start, 1, version == 1 ? 10 : 12, file);
    fwrite(header, 1, length, file);
    fwrite(data, 1, bytes, file);
    fclose(file);
}

static void test_foreign_headers(void) {
    const double data[] = {1, -2, 3, -4, 5, -6};
    struct {
        int version;
        const char *header, *name;
    } good[] = {
        {1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2, 1, 3), }      \n", "as usual"},
        {2, "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2, 1, 3), }\n", "version 2"},
        {3, "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2, 1, 3), }\n", "version 3"},
        {1, "{'shape': (1, 2, 1, 3), 'fortran_order': False, 'descr': '<f8'}", "another order, no padding, no last comma"},
        {1, " {'descr':'<f8','fortran_order':False,'shape':(1,2,1,3)}", "no spaces"},
        {1, "{ 'descr' : '<f8' ,  'fortran_order' :  False , 'shape' : (1 , 2 , 1 , 3 , ) , } \n  ", "many spaces"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        hand_made(good[i].version, good[i].header, data, sizeof data);
        HostArray npy = npy_read("load", folder, "tensor.npy", 1);
        ok(npy.type == ARRAY_FP64 && has_shape(&npy, (size_t[]){1, 2, 1, 3}) && npy_get(&npy, 1) == -2 &&
               npy_get(&npy, 5) == -6,
           "read: %s", good[i].name);
        free(npy.data);
    }
}

/* The file at `path` must be refused in one line that names the option, the path and `reason`, whether its data are wanted or not. */
static void refused(const char *reason, const char *name) {
    char *of_header = said(read_it, &(int){0}), *text = said(read_it, &(int){1}), begin[100];
    snprintf(begin, sizeof begin, "--load: %s: ", path);
    char *end = strchr(text, '\n');
    if (!ok(strncmp(text, begin, strlen(begin)) == 0 && strstr(text, reason) && end && !end[1] &&
                strcmp(of_header, text) == 0,
            "refused: %s", name))
        diag("said: %s", text);
    free(of_header);
    free(text);
}

#define TYPED(type, shape) "{'descr': " type ", 'fortran_order': False, 'shape': " shape ", }\n"
#define SHAPED(shape) TYPED("'<f8'", shape)
static void test_refusals(void) {
    const double data[] = {1, -2, 3, -4, 5, -6};
    struct {
        const char *header, *reason, *name;
    } bad[] = {
        {TYPED("'>f8'", "(1, 2, 1, 3)"), "'>f8'; save little-endian", "big-endian"},
        {TYPED("'<i4'", "(1, 2, 1, 6)"), "'<i4'", "integers"},
        {TYPED("'<f16'", "(1, 1, 1, 3)"), "'<f16'", "a float of 16 bytes"},
        {TYPED("'<V2'", "(1, 1, 1, 24)"), "holds '<V2', as NumPy writes bf16: save it widened to float32", "bf16 from ml_dtypes"},
        {TYPED("'|V2'", "(1, 1, 1, 24)"), "choose --dtype bf16", "bf16 as older versions wrote it"},
        {TYPED("'|V1'", "(1, 1, 1, 48)"), "elements of type '|V1'", "8 bits of who knows what"},
        {TYPED("[('a', '<f8')]", "(1, 1, 1, 6)"), "type [('a'", "records"},
        {"{'descr': '<f8', 'fortran_order': True, 'shape': (1, 2, 1, 3), }\n", "Fortran order", "Fortran order"},
        {SHAPED("()"), "0 dimensions", "no dimension"},
        {SHAPED("(1, 2, 3)"), "3 dimensions", "three dimensions"},
        {SHAPED("(1, 1, 1, 2, 3)"), "5 dimensions", "five dimensions"},
        {SHAPED("(1, 1, 2, 0)"), "48 bytes of data, but its shape needs 0", "an empty tensor"},
        {SHAPED("(1, 1, 2, -3)"), "shape", "a negative extent"},
        {SHAPED("(1, 1, 2.0, 3)"), "shape", "a fractional extent"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1, 2, 3", "shape", "a shape cut off"},
        {SHAPED("(1, 1, 4294967296, 4294967296)"), "needs 147573952589676412928", "2^64 elements"},
        {SHAPED("(1, 1, 1, 99999999999999999999999)"), "but its shape needs", "an extent beyond 64 bits"},
        {SHAPED("(1, 1, 1, 7)"), "holds 48 bytes of data, but its shape needs 56", "data cut off"},
        {SHAPED("(1, 1, 1, 5)"), "holds 48 bytes of data, but its shape needs 40", "trailing garbage"},
        {"{'descr': '<f8', 'shape': (1, 2, 1, 3), }\n", "lacks 'fortran_order'", "no order given"},
        {"{'fortran_order': False, 'shape': (1, 2, 1, 3), }\n", "lacks 'descr'", "no type given"},
        {"{'descr': '<f8', 'fortran_order': False", "lacks 'shape'", "no shape given"},
        {"a header", "lacks", "no dictionary"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hand_made(1, bad[i].header, data, sizeof data);
        refused(bad[i].reason, bad[i].name);
    }

    const char *header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2, 1, 3), }\n";
    hand_made(4, header, data, sizeof data);
    refused("version 1, 2 or 3", "a version of the future");
    hand_made(0, header, data, sizeof data);
    refused("version 1, 2 or 3", "a version of the past");
    hand_made(1, header, data, sizeof data);
    ok(truncate(path, 40) == 0, "cut to 40 bytes");
    refused("ends within its header", "a file cut off in its header");
    ok(truncate(path, 11) == 0, "cut to 11 bytes");
    refused("not a .npy file", "a file cut off in its header's length");
    hand_made(1, header, data, sizeof data - 1);
    refused("holds 47 bytes", "a file cut off in its data");
    hand_made(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2, 1, 3", (char[48]){')'}, 48);
    refused("shape cannot be read", "a header that only its data close");
    FILE *file = fopen(path, "wb");
    fputs("\x89PNG\r\n and so on, a picture", file);
    fclose(file);
    refused("not a .npy file", "another kind of file");
    file = fopen(path, "wb");
    fwrite("\x93NUMPY\2\0\xff\xff\xff\xff{'descr'", 1, 20, file);
    fclose(file);
    refused("ends within its header", "a header of 4 GiB");
    char many[8100] = "{'descr': '<f8', 'fortran_order': False, 'shape': (";
    for (int i = 0; i < 4000; i++)
        strcat(many, "1,");
    hand_made(1, strcat(many, "), }\n"), data, 8);
    refused("4000 dimensions", "more dimensions than memory that is theirs");
    unlink(path);
    refused("No such file", "a missing file");
    mkdir(path, 0700);
    refused("must be a regular file", "a folder");
    rmdir(path);
    mkfifo(path, 0600);
    alarm(10);
    refused("must be a regular file", "a pipe, which nobody writes");
    alarm(0);
    unlink(path);
}

static void cannot_write(const char *reason, const char *name, HostArray file) {
    char *text = said(write_it, &file), begin[100];
    snprintf(begin, sizeof begin, "--save: %s/%s: cannot be written: %s\n", folder, file.file, reason);
    if (!ok(strcmp(text, begin) == 0, "%s", name))
        diag("said: %s", text);
    free(text);
}

static void test_failed_writes(void) {
    static float big[1 << 16];
    const size_t shape[] = {1, 1, 1, 1 << 16}, small[] = {1, 1, 1, 2};
    cannot_write("No such file or directory", "write into a missing folder",
                 file_of("none/x.npy", DTYPE_FP32, 4, small, big));
    HostArray first = file_of("tensor.npy", DTYPE_FP32, 4, small, (float[]){7, 8});
    write_it(&first);
    int files = files_in_folder();
    cannot_write("Not a directory", "write below a file", file_of("tensor.npy/x.npy", DTYPE_FP32, 4, small, big));

    /* A limit on the size of files stands in for a full disk. */
    struct rlimit kept, limit;
    getrlimit(RLIMIT_FSIZE, &kept);
    limit = kept;
    limit.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    cannot_write("File too large", "a disk that fills up is reported", file_of("tensor.npy", DTYPE_FP32, 4, shape, big));
    cannot_write("File too large", "the same in bf16", file_of("tensor.npy", DTYPE_BF16, 4, shape, big));
    setrlimit(RLIMIT_FSIZE, &kept);
    HostArray old = npy_read("load", folder, "tensor.npy", 1);
    ok(array_count(&old) == 2 && npy_get(&old, 1) == 8, "and the file of before is untouched");
    free(old.data);

    char occupied[64];
    snprintf(occupied, sizeof occupied, "%s/folder", folder);
    mkdir(occupied, 0700);
    cannot_write("Is a directory", "write over a folder", file_of("folder", DTYPE_FP32, 4, small, big));
    rmdir(occupied);
    ok(files_in_folder() == files, "none of these left a file behind");
}

/* Two files, one of which is there already, with an error or a signal at call number `at`: what is there afterwards is all old, or
 * after a signal all new. Returns whether there is such a call; if not, all is new. */
static int try_all_or_none(int replaced, int number, int at) {
    static const char *const NAMES[] = {"0.npy", "1.npy"};
    const float before[] = {1, 2}, after[] = {3, 4};
    const size_t shape[] = {1, 1, 1, 2};
    char paths[2][80];
    HostArray files[2], there = file_of(NAMES[replaced], DTYPE_FP32, 4, shape, before);
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, NAMES[i]);
        files[i] = file_of(NAMES[i], DTYPE_FP32, 4, shape, after);
    }
    write_it(&there);
    int others = files_in_folder() - 1, code;
    fflush(stdout);
    int child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            abort();
        calls_left = at;
        signal_then = number;
        npy_write("save", folder, files, 2);
        _exit(calls_left ? 3 : 0);
    }
    waitpid(child, &code, 0);
    HostArray now = npy_read("load", folder, NAMES[replaced], 1);
    int is_old = npy_get(&now, 0) == 1, both = access(paths[!replaced], F_OK) == 0;
    int passed = WIFEXITED(code) && WEXITSTATUS(code) == 3, good = both == !is_old;
    good = good && (passed ? both : number ? WIFSIGNALED(code) && WTERMSIG(code) == number : code == 2 << 8 && is_old);
    ok(good && files_in_folder() == others + 1 + both, "all or none: file %d replaced, %s at call %d", replaced,
       number ? strsignal(number) : "an error", at);
    free(now.data);
    unlink(paths[0]);
    unlink(paths[1]);
    return !passed;
}

static void test_all_or_none(void) {
    const int numbers[] = {0, SIGHUP, SIGINT, SIGTERM};
    for (int i = 0; i < 8; i++)
        for (int at = 1; try_all_or_none(i % 2, numbers[i / 2], at);)
            at++;
    /* one that is ignored stays so */
    signal(SIGHUP, SIG_IGN);
    signal_then = SIGHUP;
    calls_left = 1;
    HostArray file = file_of("tensor.npy", DTYPE_FP32, 1, (size_t[]){1}, (float[]){5});
    write_it(&file);
    ok(raise(SIGHUP) == 0 && signal(SIGTERM, SIG_DFL) == SIG_DFL,
       "a signal that is ignored stays so, and no other is caught afterwards");
    signal_then = 0;
}

int main(void) {
    signal(SIGHUP, SIG_DFL), signal(SIGINT, SIG_DFL); /* under nohup and in the background they would be ignored, not tested */
    if (!mkdtemp(folder)) {
        diag("cannot make a folder in /tmp");
        return 2;
    }
    snprintf(path, sizeof path, "%s/tensor.npy", folder);
    test_round_trip();
    test_foreign_headers();
    test_refusals();
    test_failed_writes();
    test_all_or_none();
    unlink(path);
    ok(rmdir(folder) == 0, "the test's folder is empty at the end");
    return tap_done();
}
