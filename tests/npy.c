/* npy.c - tests of common/host/npy.h: what it writes it can read, what others write it can read, and everything else it refuses
 * with a sentence, leaving no half-written file behind.
 */
#define _POSIX_C_SOURCE 200809L

#include "../common/host/npy.h"
#include "../common/numeric.h"
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

static const char *write_one(const char *file, Dtype dtype, int dims, const size_t *shape, const void *data) {
    return npy_write(&(NpyFile){file, dtype, dims, shape, data}, 1);
}

static int has_shape(const Npy *npy, int dims, const size_t *shape) {
    return npy->dims == dims && memcmp(npy->shape, shape, dims * sizeof *shape) == 0;
}

static void test_round_trip(void) {
    const size_t shape[] = {3, 1, 1337, 2}, count = 3 * 1337 * 2;
    const Dtype dtypes[] = {DTYPE_FP16, DTYPE_BF16, DTYPE_FP32};
    for (int t = 0; t < 3; t++) {
        Dtype dtype = dtypes[t];
        void *data = malloc(count * 4);
        for (size_t i = 0; i < count; i++)
            dtype_store(dtype, data, i, sin((double)i) * exp(0.001 * (double)i));
        const char *error = write_one(path, dtype, 4, shape, data);
        Npy back;
        error = error ? error : npy_read(path, &back);
        if (!ok(!error, "%s: written and read", dtype_name(dtype))) {
            diag("%s", error);
            continue;
        }
        int same = back.count == count && back.element_bytes == (dtype == DTYPE_FP16 ? 2 : 4);
        for (size_t i = 0; i < count && same; i++)
            same = npy_get(&back, i) == dtype_to_double(dtype, data, i);
        ok(same && has_shape(&back, 4, shape), "%s: the same shape and numbers", dtype_name(dtype));
        npy_free(&back);
        ok(back.data == NULL, "%s: freed", dtype_name(dtype));
        ok(!npy_read_header(path, &back) && has_shape(&back, 4, shape) && back.count == count && !back.data,
           "%s: the header alone", dtype_name(dtype));
        free(data);
    }
    ok(files_in_folder() == 1, "no temporary file is left");

    for (int dims = 1; dims <= 3; dims++) {
        Npy back;
        const float data[] = {1, 2, 3, 4, 5, 6};
        const size_t small[3][3] = {{6}, {2, 3}, {1, 3, 2}};
        ok(!write_one(path, DTYPE_FP32, dims, small[dims - 1], data) && !npy_read(path, &back) &&
               has_shape(&back, dims, small[dims - 1]) && npy_get(&back, 5) == 6,
           "%d dimensions", dims);
        npy_free(&back);
    }

    /* Byte by byte what NumPy writes for numpy.save("x.npy", numpy.float16([1, 2])), and of [[1, 2]]. */
    const uint16_t pair[] = {0x3c00, 0x4000};
    const char *headers[] = {"{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }",
                             "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2), }"};
    for (int dims = 1; dims <= 2; dims++) {
        write_one(path, DTYPE_FP16, dims, &(size_t[]){1, 2}[2 - dims], pair);
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
        {1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }      \n", "as usual"},
        {2, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", "version 2"},
        {3, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", "version 3"},
        {1, "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f8'}", "another order, no padding, no last comma"},
        {1, " {\"descr\":'<f8','fortran_order':False,'shape':(2,3)}", "no spaces, double quotes"},
        {1, "{ 'descr' : '<f8' ,\t'fortran_order' :  False , 'shape' : ( 2 , 3 , ) , } \n  ", "many spaces"},
        {1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2L, 3L), }\n", "Python 2's long integers"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Npy npy;
        hand_made(good[i].version, good[i].header, data, sizeof data);
        const char *error = npy_read(path, &npy);
        if (!ok(!error && npy.element_bytes == 8 && has_shape(&npy, 2, (size_t[]){2, 3}) && npy_get(&npy, 5) == -6,
                "read: %s", good[i].name))
            diag("%s", error);
        npy_free(&npy);
    }
}

/* The file at `path` must be refused in words that contain its path and `reason`. */
static void refused(const char *reason, const char *name) {
    Npy npy;
    char of_header[512];
    const char *error = npy_read_header(path, &npy);
    snprintf(of_header, sizeof of_header, "%s", error ? error : "nothing");
    error = npy_read(path, &npy);
    if (!ok(error && strstr(error, path) == error && strstr(error, reason) && !strchr(error, '\n') && !npy.data &&
                strcmp(of_header, error) == 0,
            "refused: %s", name))
        diag("said: %s", error ? error : "nothing");
    npy_free(&npy);
}

static void test_refusals(void) {
    const double data[] = {1, -2, 3, -4, 5, -6};
    struct {
        const char *header, *reason, *name;
    } bad[] = {
        {"{'descr': '>f8', 'fortran_order': False, 'shape': (2, 3), }\n", "big-endian", "big-endian"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 6), }\n", "'<i4'", "integers"},
        {"{'descr': '<f16', 'fortran_order': False, 'shape': (3,), }\n", "'<f16'", "a float of 16 bytes"},
        {"{'descr': '<V2', 'fortran_order': False, 'shape': (24,), }\n",
         "holds '<V2', as NumPy writes bf16: save it widened to float32", "bf16 from ml_dtypes"},
        {"{'descr': '|V2', 'fortran_order': False, 'shape': (24,), }\n", "choose --dtype bf16",
         "bf16 as older versions wrote it"},
        {"{'descr': '|V1', 'fortran_order': False, 'shape': (48,), }\n", "elements of type '|V1'",
         "8 bits of who knows what"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (48,), }\n", "'|u1'", "bytes"},
        {"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (6,), }\n", "records", "records"},
        {"{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }\n", "Fortran order", "Fortran order"},
        {"{'descr': '<f8', 'fortran_order': Maybe, 'shape': (2, 3), }\n", "'fortran_order'", "an order that is neither"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n", "0 dimensions", "no dimension"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1, 1, 2, 3), }\n", "5 dimensions", "five dimensions"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 0), }\n", "extent 0", "an empty tensor"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, -3), }\n", "'shape'", "a negative extent"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2.0, 3), }\n", "'shape'", "a fractional extent"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2 3), }\n", "'shape'", "a comma missing"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3", "'shape'", "a shape cut off"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }\n", "more bytes", "2^64 elements"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693952,), }\n", "more bytes", "2^64 bytes"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999,), }\n", "64 bits",
         "an extent beyond 64 bits"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }\n", "holds 48 bytes",
         "a shape far larger than the file"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (7,), }\n", "holds 48 bytes of data where its shape asks for 56",
         "data cut off"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (5,), }\n", "holds 48 bytes of data where its shape asks for 40",
         "trailing garbage"},
        {"{'descr': '<f8', 'shape': (2, 3), }\n", "lacks", "no order given"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), 'colour': 'red', }\n", "'colour'", "an unknown key"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), 'size': (1, 6), }\n", "'size'", "one with a shape"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), } and more\n", "closing brace",
         "text after the dictionary"},
        {"('descr', '<f8')\n", "dictionary", "a tuple instead of a dictionary"},
        {"{descr: '<f8'}\n", "dictionary", "a key without quotes"},
        {"{'descr", "dictionary", "a key cut off"},
        {"", "dictionary", "an empty header"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hand_made(1, bad[i].header, data, sizeof data);
        refused(bad[i].reason, bad[i].name);
    }

    hand_made(4, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", data, sizeof data);
    refused("version 4", "a version of the future");
    hand_made(2, "", "", 0);
    ok(truncate(path, 10) == 0, "cut to 10 bytes");
    refused("ends within its header", "a file cut off in the header's length");
    hand_made(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", data, sizeof data);
    ok(truncate(path, 40) == 0, "cut to 40 bytes");
    refused("ends within its header", "a file cut off in its header");
    hand_made(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", data, sizeof data - 1);
    refused("holds 47 bytes", "a file cut off in its data");
    ok(truncate(path, 0) == 0, "cut to 0 bytes");
    refused("not a .npy file", "an empty file");
    FILE *file = fopen(path, "wb");
    fputs("\x89PNG\r\n and so on, a picture", file);
    fclose(file);
    refused("not a .npy file", "another kind of file");
    file = fopen(path, "wb");
    fwrite("\x93NUMPY\2\0\xff\xff\xff\xff{'descr'", 1, 20, file);
    fclose(file);
    refused("4294967295 bytes", "a header of 4 GiB");
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

static void test_failed_writes(void) {
    static float big[1 << 16];
    const size_t shape[] = {1 << 16}, small[] = {2};
    int files = files_in_folder();

    char missing[128], below[128];
    snprintf(missing, sizeof missing, "%s/none/x.npy", folder);
    const char *error = write_one(missing, DTYPE_FP32, 1, small, big);
    ok(error && strstr(error, missing) && strstr(error, "No such file"), "write into a missing folder");

    snprintf(below, sizeof below, "%s/x.npy", path);
    write_one(path, DTYPE_FP32, 1, small, (float[]){7, 8});
    error = write_one(below, DTYPE_FP32, 1, small, big);
    ok(error && strstr(error, "Not a directory"), "write below a file");
    ok(write_one("/proc/x.npy", DTYPE_FP32, 1, small, big) != NULL, "write where nothing may be written");

    /* A limit on the size of files stands in for a full disk. */
    struct rlimit kept, limit;
    getrlimit(RLIMIT_FSIZE, &kept);
    limit = kept;
    limit.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    error = write_one(path, DTYPE_FP32, 1, shape, big);
    int failed = error && strstr(error, "cannot be written");
    error = write_one(path, DTYPE_BF16, 1, shape, big);
    failed = failed && error;
    setrlimit(RLIMIT_FSIZE, &kept);
    ok(failed, "a disk that fills up is reported");
    Npy old;
    ok(!npy_read(path, &old) && old.count == 2 && npy_get(&old, 1) == 8, "and the file of before is untouched");
    npy_free(&old);

    char occupied[64];
    snprintf(occupied, sizeof occupied, "%s/folder", folder);
    mkdir(occupied, 0700);
    error = write_one(occupied, DTYPE_FP32, 1, small, big);
    ok(error && strstr(error, "cannot be written"), "write over a folder");
    rmdir(occupied);
    ok(files_in_folder() == files + 1, "none of these left a file behind");
}

/* Two files, one of which is there already, with an error or a signal at call number `at`: what is there afterwards is all old, or
 * after a signal all new. Returns whether there is such a call; if not, all is new. */
static int try_all_or_none(int replaced, int number, int at) {
    const float before[] = {1, 2}, after[] = {3, 4};
    const size_t shape[] = {2};
    char paths[2][80];
    NpyFile files[2];
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%d.npy", folder, i);
        files[i] = (NpyFile){paths[i], DTYPE_FP32, 1, shape, after};
    }
    write_one(paths[replaced], DTYPE_FP32, 1, shape, before);
    int others = files_in_folder() - 1, code;
    fflush(stdout);
    int child = fork();
    if (child == 0) {
        calls_left = at;
        signal_then = number;
        const char *error = npy_write(files, 2);
        _exit(calls_left ? 3 : error && strstr(error, strerror(EIO)) ? 1 : 0);
    }
    waitpid(child, &code, 0);
    Npy old, added;
    int is_old = !npy_read(paths[replaced], &old) && npy_get(&old, 0) == 1, both = !npy_read(paths[!replaced], &added);
    int passed = WIFEXITED(code) && WEXITSTATUS(code) == 3, good = old.data && both == !is_old;
    good = good && (passed ? both : number ? WIFSIGNALED(code) && WTERMSIG(code) == number : code == 1 << 8 && is_old);
    ok(good && files_in_folder() == others + 1 + both, "all or none: file %d replaced, %s at call %d", replaced,
       number ? strsignal(number) : "an error", at);
    npy_free(&old);
    npy_free(&added);
    unlink(paths[0]);
    unlink(paths[1]);
    return !passed;
}

static void test_all_or_none(void) {
    const int numbers[] = {0, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    signal(SIGXFSZ, SIG_DFL);
    for (int i = 0; i < 10; i++)
        for (int at = 1; try_all_or_none(i % 2, numbers[i / 2], at);)
            at++;
    /* one that is ignored stays so */
    signal(SIGHUP, SIG_IGN);
    signal_then = SIGHUP;
    calls_left = 1;
    ok(!write_one(path, DTYPE_FP32, 1, (size_t[]){1}, (float[]){5}) && raise(SIGHUP) == 0 &&
           signal(SIGTERM, SIG_DFL) == SIG_DFL,
       "a signal that is ignored stays so, and no other is caught afterwards");
    signal_then = 0;
}

int main(void) {
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
