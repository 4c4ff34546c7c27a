#!/usr/bin/env perl
# labs.t - each lab can be solved, each property catches a wrong kernel that those before it let pass, and known cheats fail.
#
#     TEST_BUILD=build/cpu prove tests/labs.t
#     TEST_ALL=1 prove tests/labs.t          all labs, not 04 alone, and all wrong kernels and cheats, not every fourth: minutes
#     LAB=05 prove tests/labs.t              one lab
#
# tests/labs/04.cu is a solution of lab 04, 04.txt has its wrong kernels, cheats.txt what no file may hold. Labs that build on 04 have no
# solution of their own but in window.txt what makes it of 04's.
use strict;
use warnings;
use Cwd ();
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(read_text write_text);

plan skip_all => 'the labs run on the CPU device' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
plan skip_all => 'the trace needs g++' if system('command -v g++ >/dev/null');
my $build = $ENV{TEST_BUILD} // 'build/cpu';
my $scratch = tempdir(CLEANUP => 1);
my @labs = map { m{labs/(\w+)/lab} } glob 'common/labs/*/lab.txt';
my @properties = read_text('common/labs/properties.txt') =~ /^property (.*)/mg;
my $mine = "tests-$$"; # a folder of its own for what is built
END { system("rm -rf '$build'/labs-tests-$$ build/cpu-trace/labs-tests-$$") if defined $build }

# Judges a text as lab N's kernel. What lab.sh said, its exit code, the first property that does not hold.
sub judge {
    my ($lab, $text, %environment) = @_;
    make_path("$scratch/$lab");
    write_text("$scratch/$lab/kernel.cu", $text);
    unlink "$build/labs-$mine/$lab/kernel.o", "build/cpu-trace/labs-$mine/$lab/kernel.o";
    my %all = (LABS => $scratch, OUT => $build, LAB_OUT => "$build/labs-$mine", TRACED_OUT => "build/cpu-trace/labs-$mine", NO_BESTS => 1,
        SEED => 7, %environment);
    my $words = join ' ', map { "$_='$all{$_}'" } sort keys %all;
    my $out = `env -u MAKEFLAGS -u MAKELEVEL $words sh common/labs/lab.sh $lab 2>&1 </dev/null`;
    return {out => $out, code => $? >> 8, first => ($out =~ /^(.*?) +NO$/m)[0] // ''};
}
# The entries of a file: title, old text, new text.
sub entries {
    my ($file) = @_;
    return map {
        my ($title, $lines) = /^([^\n]*)\n(.*)/s;
        [$title, map { my $sign = $_; join "\n", $lines =~ /^\Q$sign\E (.*)/mg } '-', '+']
    } split /\n(?=[^-+\n])/, read_text($file) =~ s/^#.*\n//mgr;
}
sub solution_of {
    my ($lab) = @_;
    return read_text("tests/labs/$lab.cu") if -e "tests/labs/$lab.cu";
    my $solution = read_text('tests/labs/04.cu');
    for (grep { $_->[0] =~ /^solution:/ } entries("tests/labs/$lab.txt")) {
        my ($title, $old, $new) = @$_;
        $solution =~ s/\Q$old\E/$new/ or die "tests/labs/$lab.txt: $title: not in 04.cu\n";
    }
    return $solution;
}

# ---- solutions and wrong kernels
my $all = $ENV{TEST_ALL} || $ENV{LAB};
sub some { return @_[grep { $all || $_ % 4 == 0 } 0 .. $#_] }
for my $lab (grep { $ENV{LAB} ? $_ eq $ENV{LAB} : $all || $_ eq '04' } @labs) {
    my $solution = solution_of($lab);
    my $verdict = judge($lab, $solution);
    is("$verdict->{code} " . (() = $verdict->{out} =~ / yes$/mg), '0 ' . @properties, "lab $lab: the solution has all properties") or diag $verdict->{out};
    unlike($verdict->{out}, qr/: 0 of \d+ points/, '... and all points') or diag $verdict->{out};
    my %caught;
    for (some(grep { $_->[0] !~ /^solution:/ } entries("tests/labs/$lab.txt"))) {
        my ($title, $old, $new) = @$_;
        my ($property) = $title =~ /^(.*?):/;
        my $wrong = $solution;
        my $count = $wrong =~ s/\Q$old\E/$new/g;
        ok($count, "lab $lab: the lines of \"$title\" are there") or next;
        $verdict = judge($lab, $wrong);
        is("$verdict->{code} $verdict->{first}", "1 $property", "lab $lab: $title") or diag $verdict->{out};
        $caught{$property}++;
        my ($again) = $verdict->{out} =~ /see it again: (.*)/;
        isnt(system("$again >/dev/null 2>&1") >> 8, 0, '... and the command that is printed fails, too') or diag $verdict->{out};
    }
    my %none = map { $_ => 1 } read_text("tests/labs/$lab.txt") =~ /^# none: ([^,\n]*),/mg;
    is_deeply([grep { !$caught{$_} == !$none{$_} } @properties], [], "lab $lab: every property is the first to catch one") if $all;
}
done_testing, exit if $ENV{LAB};

# ---- what is handed out
for my $lab (grep { $all || $_ eq '04' } @labs) {
    my $verdict = judge($lab, read_text("common/labs/$lab/kernel.cu"));
    is("$verdict->{code} $verdict->{first}", "1 $properties[0]", "lab $lab: what is handed out compiles and is wrong") or diag $verdict->{out};
}

# ---- a new lab is a folder: what the kernel computes is said in lab.txt alone
{
    judge('04', read_text('tests/labs/04.cu'));
    my $tree = "$scratch/tree";
    make_path("$tree/common/labs/new", "$tree/new");
    system("cp $build/labs-$mine/04/run $tree/new/run");
    my $judge = Cwd::abs_path("$build/lab");
    for (['kind forward\ndtype fp32', 0, qr/^PASS/m], ['kind forward\ndtype fp9', 2, qr/^lab: \S*lab.txt: dtype must be fp16, bf16 or fp32$/],
        ['kind sideways\ndtype fp32', 2, qr/^lab: \S*lab.txt: kind must be forward or backward$/]) {
        my ($text, $code, $says) = @$_;
        write_text("$tree/common/labs/new/lab.txt", ($text =~ s/\\n/\n/r) . "\n");
        my $out = `cd $tree && $judge new/run --seqlen 33 --seqlen-k 40 2>&1`;
        is($? >> 8, $code, "a lab with $text: exit code $code") or diag $out;
        like($out, $says, '... and what is said');
    }
    like(`cd $tree && $judge missing/run 2>&1`, qr{^lab: missing/run: there is no common/labs/missing/lab.txt here}, 'a lab without lab.txt: one line');
}

# ---- cheats
my $solution = read_text('tests/labs/04.cu');
# compile.sh alone, as make calls it.
sub compiled {
    my ($lab, $text) = @_;
    write_text("$scratch/kernel.cu", $text);
    my $compiler = ($ENV{CXX} || 'g++') . " -x c++ -std=c++17 -O1 -ffp-contract=off -Wno-unknown-pragmas -pthread -include common/labs/$lab/kernel.h";
    my $out = `sh common/labs/compile.sh '$compiler' $scratch/kernel.cu $scratch/kernel.o 2>&1`;
    return ($? >> 8) . " $out";
}
like(compiled('04', $solution), qr/^0 $/, 'the solution is no cheat');
for (some(entries('tests/labs/cheats.txt'))) {
    my ($title, undef, $lines) = @$_;
    my ($name, $says) = $title =~ /^(.*?): (.*)/;
    like(compiled('04', "$lines\n$solution"), qr/^1 .*(?:$says)/s, "cheat: $name");
}
my $cheat = judge('04', "#include <stdio.h>\n$solution");
like("$cheat->{code} $cheat->{out}", qr/^1 .*#include is not allowed(?!.* yes$)/ms, '... and nothing is judged');
like(compiled('fragments', "__device__ void product(void **operands) { compute_mma<__half>(operands, 32); }\n"),
    qr/kernel.cu:1: this function belongs to the CPU device/, 'cheat: a product that the trace does not see');
like(compiled('04', "int x;\0\n$solution"), qr/a zero byte is not allowed/, 'cheat: what follows a 0 is not read');
like(compiled('04', "// \r asm(WORDS);\n$solution"), qr/kernel.cu:1: a control character is not allowed/, 'cheat: a line that ends early');
# Another thread's local variable would be shared memory that nobody counts.
my $borrowed = $solution;
$borrowed =~ s/float q\[Br\]\[D \+ 1\], /float *q; float /;
$borrowed =~ s/(    SHARED_MEMORY.*)/$1\n    float tile[Br * (D + 1)];\n    if (threadIdx.x == 0)\n        shared.q = tile;\n    __syncthreads();/;
$borrowed =~ s/shared\.q\[i \/ D\]\[i % D\] = /shared.q[i \/ D * (D + 1) + i % D] = /;
$borrowed =~ s/shared\.q\[r\]\[d\]/shared.q[r * (D + 1) + d]/;
$borrowed =~ s/(    if \(r < rows\))/    __syncthreads();\n$1/;
like(judge('04', $borrowed)->{out}, qr/no races +yes\nnothing outside +NO\n.*\n.*is a local variable of thread 0, which other threads cannot touch \(kernel.cu:/,
    'cheat: the local variable of another thread');
# What is allowed, and looks like what is not.
for my $pragma (some('        #pragma unroll 4', '#pragma unroll', '# pragma unroll')) {
    (my $unrolled = $solution) =~ s/(?=^ *for \(int j = 0)/$pragma\n/m;
    like(judge('04', $unrolled)->{out}, qr/^one tile +yes$/m, "allowed: $pragma");
}
my $verdict = judge('04', "/* right, STAGES = 1, 10 of 10 points */\n" . read_text('common/labs/04/kernel.cu'));
is("$verdict->{code} $verdict->{first}", '1 one tile', 'cheat: an answer in a comment');
# Right for the lengths that are the same with every seed, wrong for all others.
(my $shapes = $solution) =~ s/(    SHARED_MEMORY)/    if (p.seqlen_k % 32 > 7 || p.seqlen_q % 32 > 9)\n        return;\n$1/;
$verdict = judge('04', $shapes);
is("$verdict->{code} $verdict->{first}", '1 a ragged last tile', 'cheat: the lengths that are always asked are known');
(my $endless = $solution) =~ s/(    SHARED_MEMORY)/    for (int i = 0; i >= 0;)\n        __syncthreads();\n$1/;
$verdict = judge('04', $endless, CPU_SECONDS => 1);
like($verdict->{out}, qr/one tile +NO.*processor time/s, 'a kernel without an end is stopped');

# Right, but one thread does all: no points for that.
(my $single = $solution) =~ s/.*^__global__[^\n]*\n.*/<<'END'/ems;
__global__ void flash2(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *O, float *LSE) {
    int batch = blockIdx.z, head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads);
    const float *k = K + ((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k * D, *v = V + (k - K);
    for (int row = 0; row < p.seqlen_q && threadIdx.x == 0 && blockIdx.x == 0; row++) {
        size_t flat = ((size_t)batch * p.heads + head) * p.seqlen_q + row;
        float m = -INFINITY, l = 0, o[D] = {};
        for (int j = 0; j < visible_keys(&p, key_length(&p, key_lengths, batch), row); j++) {
            float s = 0;
            for (int d = 0; d < D; d++)
                s += p.scale * Q[flat * D + d] * k[j * D + d];
            float m_new = fmaxf(m, s), alpha = expf(m - m_new), weight = expf(s - m_new);
            l = alpha * l + weight, m = m_new;
            for (int d = 0; d < D; d++)
                o[d] = alpha * o[d] + weight * v[j * D + d];
        }
        for (int d = 0; d < D; d++)
            O[flat * D + d] = l > 0 ? o[d] / l : 0;
        LSE[flat] = m + logf(l);
    }
}
END
$verdict = judge('04', $single);
like($verdict->{out}, qr/nothing outside +yes\nbytes of device memory .*: 0 of 4 points\nexponentials .*: 0 of 2 points/, 'one thread does all: right, and without points') or diag $verdict->{out};

# Right, but nothing runs beside the products; and products that nobody needs, so that something does.
(my $alone = read_text('tests/labs/08.cu')) =~ s/wgmma_commit\(\);/wgmma_commit();\n    wgmma_wait<0>(d);/;
$verdict = judge('08', $alone);
like("$verdict->{code} $verdict->{out}", qr/^0 .*^exponentials while.* 1\.0\d, .*: 0 of 2 points\nexponentials while.*: 0 of 3 points\n/ms, 'lab 08 without overlap: right, and fewer points')
    or diag $verdict->{out};
(my $needless = $alone) =~ s/(wgmma_wait<0>\(d\);)/$1\n    wgmma_fence(rest);\n    wgmma<__half>(rest, ring.q.descriptor(), ring.q.descriptor(), false);\n    wgmma_commit();/;
$needless =~ s/float \(&d\)\[8\]\[4\], Ring &ring, int n\) \{\n    auto/float (&d)[8][4], float (&rest)[8][4], Ring &ring, int n) {\n    auto/;
$needless =~ s/multiply\((s|next), ring/multiply($1, rest, ring/g;
$needless =~ s/s\[8\]\[4\], next/rest[8][4], s[8][4], next/;
$verdict = judge('08', $needless);
like("$verdict->{code} $verdict->{out}", qr/^0 .*^exponentials while.*: 0 of 2 points\nexponentials while.*: 0 of 3 points\n/ms, '... nor more for a needless product')
    or diag $verdict->{out};

# ---- what is said of a wrong kernel
like(judge('04', read_text('common/labs/04/kernel.cu'))->{out}, qr/nothing was written to O\n(?!.*likely)/s, 'an output that was never written has its own sentence');
(my $spread = $solution) =~ s/exists \? v(.*) : 0;/exists ? v$1 : shared.v[i \/ D][i % D];/;
like(judge('04', $spread)->{out}, qr/a ragged last tile +NO\n.*\n +O\[.*nan.*\n +likely: The last tile has fewer rows/, '... which a NaN out of fresh shared memory is not');
(my $deadlock = $solution) =~ s/__syncthreads\(\);/if (threadIdx.x < 40)\n            __syncthreads();/;
like(judge('04', $deadlock)->{out}, qr/no thread can continue(?!.*likely)/s, 'a deadlock: the device says why, and nobody guesses');
(my $unscaled = $solution) =~ s/p\.scale \* dot/dot/;
like(judge('04', $unscaled)->{out}, qr/likely: The scores are scale/, 'a wrong result: a guess');
(my $uncorrected = read_text('tests/labs/02.cu')) =~ s/o0 = alpha \* o0/o0 = o0/;
like(judge('02', $uncorrected)->{out}, qr/one tile +NO.*likely:.*l and o both multiplied by alpha/s, 'lab 02 has a sentence of its own for one tile');

# ---- what does not compile
for (['float x = 1\n    int y;', qr/kernel\.cu:3: .*\n    +int y;\n.*semicolon/], ['retrun;', qr/kernel\.cu:2: .*\n    +retrun;\n.*not known here/],
    ['__shared__ float tile[32];', qr/kernel\.cu:2: .*\n.*__shared__ float tile.*\n.*SHARED_MEMORY\(shared, Shared\)/]) {
    my ($line, $says) = @$_;
    $line =~ s/\\n/\n/;
    my ($kernel) = read_text('common/labs/04/kernel.cu') =~ /^(__global__.*\{)$/m;
    $verdict = judge('04', "$kernel\n    $line\n}\n");
    like("$verdict->{code} $verdict->{out}", qr/^1 .*$says/s, "does not compile: $line");
}
# The student's program is there, and the judge is not.
write_script("$scratch/unlinked", 'make "$@" || exit; case "$*" in *TRACE=1*) exit 0 ;; esac; echo "ld: undefined reference"; exit 2');
$verdict = judge('04', $solution, MAKE => "$scratch/unlinked");
like("$verdict->{code} $verdict->{out}", qr/^1 ld: undefined reference$/m, 'the judge cannot be linked: why');

# ---- on a GPU: the share of our kernel's speed. Here a make and programs that are made up stand in for nvcc's.
sub write_script { my ($file, $text) = @_; write_text($file, "#!/bin/sh\n$text\n"); chmod 0755, $file }
make_path("$scratch/gpu/04_fa2");
write_script("$scratch/make", 'case "$*" in *DEVICE=cuda*) exit 0 ;; esac; exec make "$@"');
write_script("$scratch/gpu/lab", q(echo '{"variant": "00_naive", "latency_ms": 9}'; echo '{"launch_ms": 2.5}'));
write_script("$scratch/gpu/04_fa2/04_fa2", q([ "$*" = "--variant fma --dtype fp32 --batch 1 --heads 16 --seqlen 2048 --head-dim 64 --json" ] && echo '{"variant": "00_naive", "latency_ms": 9}' && echo '{"variant": "04_fa2/fma", "latency_ms": 2}'));
my %gpu = (GPU_OUT => "$scratch/gpu", MAKE => "$scratch/make");
like(judge('04', $solution, %gpu)->{out}, qr/^on this GPU: 2\.5 ms, and 2 ms for our 04_fa2\/fma \(--batch 1 .*\): 80% of our speed$/m, 'on a GPU: the share of our speed');
write_script("$scratch/gpu/lab", 'echo "lab: no GPU today" >&2; exit 2');
$verdict = judge('04', $solution, %gpu);
like("$verdict->{code} $verdict->{out}", qr/^0 .*^on this GPU: not measured, lab: no GPU today$/ms, '... and why there is none; the verdict stays');

# ---- make lab
my @make = ('env', '-u', 'MAKEFLAGS', '-u', 'MAKELEVEL', 'make', '--no-print-directory', 'DEVICE=cpu', "LABS=$scratch/new", "LAB_OUT=$build/labs-$mine");
like(`@make lab`, qr/^04 .*not begun$/m, 'make lab: a list');
like(`@make lab N=04`, qr{new/04/kernel.cu is yours to write}, 'make lab N=04: a file');
is(read_text("$scratch/new/04/kernel.cu"), read_text('common/labs/04/kernel.cu'), '... with an empty kernel');
like(`@make lab N=04 HINT=2`, qr/^\S.*\n\S.*\n\z/, 'HINT=2: two lines');
unlink "$build/labs-$mine/04/kernel.o", "build/cpu-trace/labs-$mine/04/kernel.o";
write_text("$scratch/new/04/kernel.cu", $solution);
like(`@make lab N=04`, qr/^points   20 of 20; best so far: 20$/m, 'make lab N=04: all points');
is($?, 0, '... and exit code 0');
write_text("$scratch/new/04/kernel.cu", read_text('common/labs/04/kernel.cu'));
like(`@make lab N=04 2>&1`, qr/^points   0 of 20; best so far: 20\n.*^not yet.*\nmake: \*\*\* .* Error 1$/ms, 'the best score does not fall');
is($? >> 8, 2, '... and "not yet" is an error');
like(`@make lab`, qr/^04 .*20 of 20 points$/m, '... and the list has it');
like(`@make lab N=4 2>&1`, qr/^lab: N=4: choose one of .*04/m, 'N=4: the labs that there are');

# ---- make grade
for (['ann', $solution], ['bob', $shapes], ['cem', "#include <stdio.h>\n$solution"]) {
    my ($student, $text) = @$_;
    make_path("$scratch/course/$student/04");
    write_text("$scratch/course/$student/04/kernel.cu", $text);
}
# Dan hands in a link to the solution, Eve to Ann's folder, and Fay nothing that can be read to its end.
make_path("$scratch/course/dan/04", "$scratch/course/fay/04");
symlink Cwd::abs_path('tests/labs/04.cu'), "$scratch/course/dan/04/kernel.cu";
symlink 'ann', "$scratch/course/eve";
system("mkfifo $scratch/course/fay/04/kernel.cu");
my @grade = ('env', '-u', 'MAKEFLAGS', '-u', 'MAKELEVEL', 'make', '--no-print-directory', 'DEVICE=cpu');
my $table = `@grade grade SUBMISSIONS=$scratch/course JOBS=2 SEED=7 2>&1`;
like($table, qr/^ann +04 +10 of 10 +20 of 20 *\nbob +04 +2 of 10 +2 of 20 +a ragged last tile: .*\ncem +04 +0 of 10 +0 of 20 +it does not compile: .*#include/m,
    'make grade: a line for each') or diag $table;
like($table, qr/^$_ +04 +0 of 0 +0 of 0 +this is a link or not a file: hand in the kernel itself$/m, "... $_ has handed in no file of their own") for 'dan', 'eve', 'fay';
if ($ENV{TEST_ALL}) { # a compiler that would never end
    make_path("$scratch/bombs/gil/04");
    write_text("$scratch/bombs/gil/04/kernel.cu", 'template <int N, int M> struct T { static constexpr int v = T<N - 1, 2 * M>::v + T<N - 1, 2 * M + 1>::v; };
template <int M> struct T<0, M> { static constexpr int v = 1; };
static_assert(T<28, 1>::v, "");' . "\n$solution");
    like(`@grade grade SUBMISSIONS=$scratch/bombs CPU_SECONDS=1 2>&1`, qr/^gil +04 +0 of 10 +0 of 20 +it does not compile/m, 'make grade: a compiler without an end is stopped');
}
is(() = read_text("$scratch/course/grades.json") =~ /^\{"student": "(?:ann|bob|cem)", "lab": "04", .*"seed": 7\}$/mg, 3, '... and as JSON');
like(`@grade grade SUBMISSIONS=$scratch/none 2>&1`, qr/^grade: SUBMISSIONS=\S+none: choose a folder/m, 'make grade: no such folder');

# ---- make student-tree
is(system("sh common/labs/student_tree.sh $scratch/students >/dev/null"), 0, 'make student-tree');
my $pages = 0;
for my $page (split /\n/, `cd $scratch/students && find * -name '*.md'`) {
    my ($folder, $text) = ($page =~ s/[^\/]*$//r, read_text("$scratch/students/$page") =~ s/^```.*?^```$|`[^`]*`//gmsr);
    my @dead = grep { !/^(https?:|#)/ && !-e "$scratch/students/$folder" . s/#.*//r } $text =~ /\]\(([^)\s]+)\)/g;
    $pages++;
    fail("make student-tree: $page leads nowhere: @dead") if @dead;
}
ok($pages > 20, 'make student-tree: the links of all pages lead to what is there');
like(read_text("$scratch/students/notes/labs.md"), qr{\[04_fa2\]\(04_fa2.md\)}, '... and those that led there before still do');
is(join(' ', grep { -e "$scratch/students/$_" } qw(notes/solutions.md notes/teaching_plan.md notes/04_fa2.html tests 04_fa2/fma.cu 11_score_mod/fma.cu)), '', '... without answers and kernels');
system("sh common/labs/student_tree.sh $scratch/others window >/dev/null");
is(join(' ', grep { -e "$scratch/others/$_" } qw(04_fa2/fma.cu 11_score_mod/fma.cu 10_block_sparse/overlapped.cu)), '04_fa2/fma.cu',
    '... with N=window: without those that solve this lab alone');
is(`cd $scratch/students && env -u MAKEFLAGS -u MAKELEVEL make -n --no-print-directory DEVICE=cpu build/cpu/lab 2>&1 | grep -c 'No rule'`, "0\n", '... and with all that the judge is made of');
done_testing;

