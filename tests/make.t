#!/usr/bin/env perl
# make.t - the Makefile: what is compiled again and what is not, where the programs go, which device and which commit it finds.
#
# All of it in a copy of the code, which lies in the folder of another git repository.
use strict;
use warnings;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program;

plan skip_all => 'the CPU device will do for make' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
delete @ENV{qw(DEVICE CC CXX CFLAGS CXXFLAGS NVCC ARCH WARN KERNEL_OPTIMISE COMMIT OUT TRACE MAKEFLAGS MAKELEVEL)};
my @folders = stages();
is_deeply([sort map { s{/.*}{}r } glob '*/main.c'], [sort @folders], 'every stage is in common/ladder.txt');

my $scratch = tempdir(CLEANUP => 1);
my ($tree, $out) = ("$scratch/a student's tree", "$scratch/out");
system("mkdir \"$tree\" && cp -a Makefile common tests @folders \"$tree\"") == 0 or BAIL_OUT('cannot copy');
chdir $tree or BAIL_OUT("$tree: $!");
system("rm -f $_/$_") for @folders;
sub make { return scalar `make --no-print-directory @_ 2>&1 </dev/null` }
sub files { return scalar `find . -printf '%p %T@ %l\\n' | sort` }
sub would_compile { return scalar(() = make('-n', @_) =~ /"  \S+ compile /g) }

# ---- a folder elsewhere, and the tree stays as it is; a second time there is nothing to do
my $before = files();
my @naive = ('00_naive', 'DEVICE=cpu', "OUT=$out", 'KERNEL_OPTIMISE=-O1');
like(make(@naive), qr/^\Q$out\E\/00_naive\/00_naive is built for the CPU device: as requested$/m, 'an absolute OUT: it says where the program is');
ok(-x "$out/00_naive/00_naive", 'and there it is');
is(files(), $before, 'the tree is as it was');
is(would_compile(@naive), 0, 'built: nothing is compiled again');

# ---- a tree that cannot be written to
chmod 0755, $scratch;
my ($said, $code) = in_read_only($tree, 'make --no-print-directory 00_naive DEVICE=cpu');
like("$code $said", qr/\A2 build\/cpu cannot be written to: OUT=\/some\/folder builds elsewhere\nmake: \*\*\* .*\n\z/, 'a tree that cannot be written to: one line, which names OUT');

# ---- flags and compilers
my $c = () = glob '00_naive/*.c common/{harness,judge,host,device,cpu}/*.c';
my $all = $c + 1; # naive.cu
cmp_ok(would_compile(@naive, 'WARN=-w'), '==', $all, 'WARN: all is compiled again');
cmp_ok(would_compile(@naive, 'CC=other-cc'), '==', $all, 'CC: likewise');
cmp_ok(would_compile(@naive, 'CXX=other-c++'), '==', $all, 'CXX: likewise');
cmp_ok(would_compile(@naive, 'KERNEL_OPTIMISE=-O0'), '==', $all, 'KERNEL_OPTIMISE: likewise');
cmp_ok(would_compile(@naive, 'SANITIZE=address'), '==', $all, 'SANITIZE in the same folder: likewise');
cmp_ok(would_compile(@naive, 'COMMIT=other'), '==', 1, 'another commit: one file');
cmp_ok(would_compile(@naive, 'CFLAGS=-O1'), '==', $all, 'CFLAGS: likewise');
cmp_ok(would_compile(@naive, 'CXXFLAGS=-O1'), '==', $all, 'CXXFLAGS: likewise');
for my $how ('-n V=1 00_naive DEVICE=cpu CFLAGS=-DMINE CXXFLAGS=-DKERNELS', '-n V=1 00_naive DEVICE=cpu TRACE=1 CFLAGS=-DMINE CXXFLAGS=-DKERNELS') {
    my $commands = make($how);
    like($commands, qr/ -std=c11 .*-DFA_COMMIT=.* -DMINE .* common\/harness\/records\.c /, 'CFLAGS of your own add to those that are needed');
    like($commands, qr/ -std=c\+\+17 .*-DKERNELS .* 00_naive\/naive\.cu /, 'and CXXFLAGS');
}
if ($ENV{TEST_ALL}) {
    make(@naive, 'WARN=-w');
    cmp_ok(would_compile(@naive, 'WARN=-w'), '==', 0, 'with the other flags it is then built');
    cmp_ok(would_compile(@naive), '==', $all, 'and back');
}

# ---- the commit
sub commit { return make('-n', '00_naive', 'DEVICE=cpu') =~ /touch build\/cpu\/commit-(\S+)/ ? $1 : 'none' }
SKIP: {
    skip 'no git here', 4 if system('git --version >/dev/null 2>&1') != 0;
    my $git = 'git -c user.name=n -c user.email=e@x -c init.defaultBranch=main -C';
    system("$git '$scratch' init -q && $git '$scratch' commit -q --allow-empty -m one");
    is(commit(), 'unknown', 'inside the folder of another repository: unknown');
    system("$git . init -q && $git . add Makefile && $git . commit -q -m two");
    my $commit = `git describe --always`;
    chomp $commit;
    is(commit(), $commit, "a repository's own commit");
    system('echo >> Makefile');
    is(commit(), "$commit-dirty", 'and whether something has changed since');
    like($commit, qr/^[0-9a-f]{7,}$/, 'which git knows');
}

# ---- a file gets its name when it is done: a second make in this tree, or one that is stopped, finds no half of one
mkdir "$scratch/bin";
if ($ENV{TEST_ALL}) {
    script($_, <<"END") for 'ar', 'gcc', 'g++';
case " \$* " in *'$scratch/whole/'*) ;; *) PATH=\${PATH#*:} exec $_ "\$@" ;; esac
for word; do case \$word in *.o | *.a | */00_naive) made=\$word ;; *.[oa].[0-9]* | */00_naive.[0-9]*) made=; break ;; esac; done
[ -z "\$made" ] || echo "$_ writes \$made" >>'$scratch/written'
PATH=\${PATH#*:} exec $_ "\$@"
END
    $said = with_bin(@naive[0, 1], "OUT=$scratch/whole", 'KERNEL_OPTIMISE=-O0');
    like($said, qr/00_naive is built/, 'built with compilers that look at the names they are given');
    ok(!-e "$scratch/written", 'no object, archive or program is written under its own name') or diag(`cat '$scratch/written'`);
    is(`find '$scratch/whole' -name '*.[0-9]*'`, '', 'and no other name is left');
    unlink map { "$scratch/bin/$_" } 'ar', 'gcc', 'g++';
    my @makes = map { open my $making, '-|', "make --no-print-directory 00_naive DEVICE=cpu OUT=$scratch/two KERNEL_OPTIMISE=-O0 2>&1"; $making } 1, 2;
    my @both = map { my $making = $_; join '', <$making> } @makes;
    like($_, qr/00_naive is built/, 'one of two makes at once') for @both;
    is(would_compile('00_naive', 'DEVICE=cpu', "OUT=$scratch/two", 'KERNEL_OPTIMISE=-O0'), 0, 'nothing is left to do after them');
}
like(make('-pn', 'help'), qr/^\.DELETE_ON_ERROR:/m, 'what fails leaves no file');

# ---- how far it is
my @steps = make('-n', 'all', 'DEVICE=cpu', "OUT=$scratch/none") =~ /echo "  \[(\d+\/\d+)\] /g;
cmp_ok(scalar @steps, '>', 50, 'a build of all stages has many steps');
is_deeply(\@steps, [map { $_ . '/' . @steps } 1 .. @steps], 'each says which of how many it is');
make(@naive);
system('touch 00_naive/naive.cu');
my $left = make(@naive, '2>&1');
like($left, qr/\A  \[1\/2\] compile 00_naive\/naive\.cu\n(?:  \d+ s: .*\n)*  \[2\/2\] link .*\n.*is built/, 'only what is not up to date counts') or diag($left);

# ---- a compiler that takes its time
sub compiler {
    open my $file, '>', "$scratch/slow-cc" or die $!;
    print $file "#!/bin/sh\n@_\n";
    close $file;
    chmod 0755, "$scratch/slow-cc";
}
compiler('sleep 3; exec $(command -v gcc || command -v clang) "$@"');
my @slow = ("$out/00_naive/main.c.o", @naive[1 .. $#naive], "CC='$scratch/slow-cc'");
like(`PATIENCE=1 make --no-print-directory @slow 2>&1`, qr/\A  \[1\/1\] compile 00_naive\/main\.c\n  1 s: still compiling 00_naive\/main\.c\n  2 s: /, 'a long compilation says so now and then');
ok(-s "$out/00_naive/main.c.o", 'and ends as any other');
compiler('exit 3');
unlink "$out/00_naive/main.c.o";
like(make(@slow), qr/\A  \[1\/1\] compile 00_naive\/main\.c\nmake: \*\*\* .*00_naive\/main\.c\.o\] Error \d+\n\z/, 'one that fails ends at once');

# ---- jobs
sub at_once { return make(@_) =~ / --jobs (\d+)/ ? $1 : 'none' }
chomp(my $cores = `getconf _NPROCESSORS_ONLN`);
is(at_once('-n', 'test-quick', 'DEVICE=cpu'), $cores, 'as many tests at once as there are cores');
is(at_once('-j1 -n', 'test-quick', 'DEVICE=cpu'), 1, '-j1: one');
{
    local $ENV{MAKEFLAGS} = '-j1';
    is(at_once('-n', 'test-quick', 'DEVICE=cpu'), 1, "the environment's MAKEFLAGS=-j1: one");
    is(at_once('-n', '-C 00_naive', 'test-quick', 'DEVICE=cpu'), 1, "likewise in a stage's folder");
}

# ---- tests that take long, where no terminal shows what goes on
script('quick', "echo 'ok 1'; echo 1..1\n");
script('slow', "sleep 2; echo 'ok 1'; echo 1..1\n");
$said = `PATIENCE=1 perl tests/prove.pl --exec '' --jobs 2 '$scratch/bin/quick' '$scratch/bin/slow' 2>&1`;
like($said, qr/\Arunning 2 tests\n\S+quick \.+ ok\n(?:    after \d s: still to end: \S+\/slow\n)+\S+slow \.+ ok\nAll tests successful/, 'what has not ended is told') or diag($said);
script('slow', "echo 'not ok 1'; echo 1..1\n");
isnt(system("perl tests/prove.pl --exec '' '$scratch/bin/slow' >/dev/null 2>&1"), 0, 'a failure is one');
script('perl', "echo perl runs \"\$1\"\n");
is(with_bin('test-quick', 'DEVICE=cpu', "OUT=$scratch/none", 'UNITS=', 'GRIDS='), "perl runs tests/prove.pl\n" x 2, 'make does not show the command');
unlink "$scratch/bin/perl";

# ---- what cannot be: one line each
for (['MAKE_VERSION=3.81', 'help', 'this is make 3.81, but GNU make 4.2 or later is needed'],
     ['NVCC=/nonexistent', '00_naive', 'NVCC=/nonexistent: there is no such program'],
     ['NVCC=/nonexistent DEVICE=cuda', '00_naive', 'NVCC=/nonexistent: there is no such program'],
     ["OUT='$scratch/a b'", '00_naive', "OUT=$scratch/a b: choose one folder, without spaces, quotes or colons in its name"],
     ['OUT=', '00_naive', 'OUT=: choose one folder, without spaces, quotes or colons in its name']) {
    my ($variables, $goal, $why) = @$_;
    is(make($variables, $goal) =~ s{^common/build\.mk:\d+: }{}r, "*** $why.  Stop.\n", "make $variables");
}
mkdir "$scratch/few";
for my $tool (qw(sh make sed awk grep head tr cut getconf cksum sort tail env)) {
    chomp(my $path = `PATH=/usr/bin:/bin:"\$PATH"; command -v $tool`);
    symlink $path, "$scratch/few/$tool";
}
sub with_few { my $words = join ' ', map { "'$_'" } @_; return scalar `PATH='$scratch/few' make --no-print-directory $words 2>&1 </dev/null` }
like(with_few('test', 'DEVICE=cpu'), qr/\A(?:common\/build\.mk:\d+: )?\*\*\* make test needs prove, which comes with perl .*\n\z/, 'without prove nothing is built for the tests');
script('nothing', '');
symlink "$scratch/bin/nothing", "$scratch/few/$_" for 'clang', 'clang++';
like(with_few('-n', 'V=1', @naive[0, 1]), qr/ && clang -std=c11 .* && clang\+\+ -x c\+\+ /s, 'clang without gcc is found');
symlink "$scratch/bin/nothing", "$scratch/few/$_" for 'gcc', 'g++';
like(with_few('-n', 'V=1', @naive[0, 1]), qr/ && gcc -std=c11 .* && g\+\+ -x c\+\+ /s, 'gcc is taken where both are');

# ---- a new stage: what is forgotten is told in one line
my $new = '09_twenty_characters';
sub write_to { my ($mode, $file, $text) = @_; open my $to, $mode, $file or die "$file: $!"; print $to $text; close $to }
sub told {
    my ($name, $line) = @_;
    my $said = make($new, @naive[1 .. 3]);
    ok($? != 0 && $said =~ /\A(?:common\/build\.mk:\d+: \*\*\* )?\Q$line\E(?:  Stop\.)?\n(?:make: \*\*\* .*\n)?\z/, $name) or diag($said);
}
mkdir $new;
told('no line in the ladder', "$new: common/ladder.txt has no line for it.");
write_to('>>', 'common/ladder.txt', "$new 00_naive -\n");
write_to('>', "$new/main.c", <<'END');
#include "../common/stage.h"
const Stage stage = {
    .name = "09_another",
    .idea = "",
    .variants = {{.name = "v", .idea = "", .dtypes = FP16}},
};
int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
END
told("another name than the folder's", qq{$new/main.c has no .name = "$new": a stage must have the name of its folder.});
system("sed -i 's/09_another/$new/' $new/main.c");
like(make($new, @naive[1 .. 3]), qr/^\Q$out\E\/$new\/$new is built/m, 'then it is built');
is(`$out/$new/$new --seqlen 8 2>&1`, "$new: the row of v in main.c needs .launch and .dtypes\n", 'a row without .launch');
is($? >> 8, 2, 'exit code 2');
system("sed -i 's/\\.name = \"$new/.kind=BACKWARD,.name=\"$new/' $new/main.c");
like(make('-n', "build/cpu/tests/grid_$new", 'DEVICE=cpu'), qr/compile tests\/grid_backward\.c/, 'a kind without spaces around it counts');
system("rm -r $new && sed -i '/^$new/d' common/ladder.txt");

# ---- how one asks for a stage
like(make('-n', '00_naive/', 'DEVICE=cpu'), qr/00_naive\/00_naive is built/, 'make 00_naive/: as the shell completes it');
system('touch 00_naive/naive.cu');
like(make('-n', $_, 'DEVICE=cpu'), qr/compile 00_naive\/naive\.cu.*00_naive\/00_naive is built/s, "make $_") for '00', '00_naive/00_naive';
sub inside { return scalar `cd 00_naive && make --no-print-directory @_ 2>&1 </dev/null` }
like(inside('-n', 'DEVICE=cpu'), qr/00_naive\/00_naive is built/, "make in a stage's folder builds it");
like(inside('-n', '00_naive', 'DEVICE=cpu'), qr/00_naive\/00_naive is built/, 'with its name, too');
like(inside('help'), qr/^make clean  .*^make test  /ms, 'make help there');
like(inside('-n', 'clean'), qr/^rm -rf build .*00_naive\/00_naive/m, 'make clean there');
like(inside('-n', 'test-quick', 'DEVICE=cpu'), qr/^env .*prove\.pl .*grid_00_naive/m, 'make test-quick there');
like(inside('-n', 'nonsense'), qr/No rule to make target 'nonsense'/, 'what there is not is not there either');

# ---- the list of targets, and what the trace runs
my @help = split /\n/, make('help', 'DEVICE=cpu');
for my $target ('<stage>', 'trace-<stage>', 'profile-<stage>', 'trace', 'compare', 'test', 'clean') {
    is(scalar(grep { /^make \Q$target\E +\S/ } @help), 1, "make help: $target, once");
}
is_deeply([grep { length > 120 } @help], [], 'make help: lines of at most 120 characters');

my @traced = ('-n', 'DEVICE=cpu', 'TRACE=1');
my $own = '--heads 8 --kv-heads 2 --seqlen-k 1024';
for (['trace', qr/04_fa2 --trace --heads 2 --seqlen 256 --seqlen-k 1024;.*07_flash_decoding --trace $own;/, 'a decoding stage has a shape of its own'],
     ['trace TRACE_OPTIONS=--causal DECODE_OPTIONS=--warm', qr/04_fa2 --trace --causal;.*07_flash_decoding --trace --warm;/, 'each its options'],
     ['trace-07_flash_decoding', qr/07_flash_decoding --trace $own$/m, 'its own shape'],
     ['trace-07', qr/07_flash_decoding --trace $own$/m, 'a stage by its number'],
     ['watch-04', qr/04_fa2\.html .* build\/cpu-trace\/04_fa2\/04_fa2$/ms, 'likewise'],
     ['watch-06 TRACE_OPTIONS=--causal', qr/06_fp8\.html '--causal' \S+\/04_fa2\/04_fa2 \S+\/06_fp8\/06_fp8$/m, 'beside what it builds on'],
     ['watch-06 TRACE_OPTIONS=--format=e5m2', qr/06_fp8\.html '--format=e5m2' \S+\/06_fp8\/06_fp8$/m, 'alone, as its own options are only its own'],
     ['trace-07_flash_decoding TRACE_OPTIONS=--warm', qr/07_flash_decoding --trace --warm$/m, 'or what is asked for']) {
    my ($target, $runs, $name) = @$_;
    like(make(@traced, $target), $runs, "make $target: $name");
}

my $profile = make('profile-07', 'DEVICE=cpu') =~ s/^make: .*\n//mr;
like($profile, qr/\Aprofile-07_flash_decoding: needs a GPU and ncu .{1,90}\n\z/, 'make profile without a GPU: one line');
cmp_ok(length $profile, '<=', 121, 'of at most 120 characters');

# ---- which device: nvidia-smi's excuses are not a GPU
for (["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that 12.4 is installed.", 9, 'cpu', '75 80 89 90a'],
     ['No devices were found', 6, 'cpu', '75 80 89 90a'], ['[N/A]', 0, 'cpu', '75 80 89 90a'], ['', 127, 'cpu', '75 80 89 90a'],
     ['8.6', 0, 'cuda', '86'], ["9.0\n9.0", 0, 'cuda', '90a'], ['12.0', 0, 'cuda', '120']) {
    my ($says, $code, $device, $arch) = @$_;
    program('nvcc', '', 0), program('nvidia-smi', $says, $code);
    my ($now) = `PATH='$scratch/bin':"\$PATH" make help 2>&1` =~ /^(DEVICE=.*)/m;
    my $reason = $device eq 'cuda' ? 'nvcc and a GPU are here' : 'nvcc is here but nvidia-smi shows no GPU';
    like($now // '', qr/now: $device \($reason\);.*now: $arch$/, 'nvidia-smi says "' . ($says =~ s/\n.*//sr) . "\": $device, $arch");
}

# ---- what is compiled for the GPU
sub for_gpu { # the options of nvcc that choose the chips, and how make ends
    my $said = with_bin('-n', 'V=1', '00_naive', 'DEVICE=cuda', @_);
    my ($chips) = $said =~ /nvcc .*?((?:-gencode \S+ )+).*naive\.cu/;
    return (($chips // '') =~ s/-gencode arch=compute_\w+,code=|\s+\z//gr, $said);
}
program('nvidia-smi', '', 9);
for (['sm_86', 'sm_86'], ['8.6', 'sm_86'], ['86', 'sm_86'], ['8.0 sm_90a', 'sm_80 sm_90a'], ['compute_75', 'compute_75'],
     ['nonsense', ''], ['75,80', ''], ['native', '']) {
    my ($asked, $wanted) = @$_;
    my ($chips, $said) = for_gpu("ARCH='$asked'");
    is($chips, $wanted, "ARCH=$asked");
    like($said, qr/\A(?:common\/build\.mk:\d+: )?\*\*\* ARCH=$asked: choose compute capabilities, like 86 or "80 90a", or native .*\n\z/, "ARCH=$asked: one line") if !$wanted;
}
program('nvcc', "compute_75\ncompute_80\ncompute_90\ncompute_90a\ncompute_100", 0);
for (['8.0', 'sm_80', ''], ['9.0', 'sm_90a', ''], ['10.0', 'sm_100', ''], ['10.3', 'compute_100', 'sm_103'], ['12.0', 'compute_100', 'sm_120'],
     ['8.6', 'compute_80', 'sm_86']) {
    my ($gpu, $wanted, $unknown) = @$_;
    program('nvidia-smi', $gpu, 0);
    for my $how ('', 'ARCH=native') {
        my ($chips, $said) = for_gpu($how);
        is($chips, $wanted, "compute capability $gpu $how: $wanted");
        my $sentence = $unknown ? " (nvcc does not know $unknown: the driver will compile PTX for it)" : '';
        like($said, qr/is built for the GPU \(arch \w+\): as requested\Q$sentence\E"$/m, 'and what make says');
    }
}
symlink "$scratch/bin/nothing", "$scratch/few/nvcc";
unlink map { "$scratch/few/$_" } 'gcc', 'g++';
like(with_few('-n', 'V=1', '00_naive', 'DEVICE=cuda'), qr/nvcc -ccbin clang\+\+ .*naive\.cu/, 'without g++ nvcc is told of clang');
chdir '/';
done_testing;

sub script {
    my ($name, $text) = @_;
    open my $to, '>', "$scratch/bin/$name" or die "$name: $!";
    print $to "#!/bin/sh\n$text";
    close $to;
    chmod 0755, "$scratch/bin/$name";
}
sub program { my ($name, $says, $code) = @_; script($name, "cat <<'END'\n$says\nEND\nexit $code\n") }
sub with_bin { return scalar `PATH='$scratch/bin':"\$PATH" make --no-print-directory @_ 2>&1 </dev/null` }
