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
delete @ENV{qw(DEVICE CC CXX NVCC ARCH WARN KERNEL_OPTIMISE COMMIT OUT TRACE MAKEFLAGS MAKELEVEL)};
my @folders = stages();
is_deeply([sort map { s{/.*}{}r } glob '*/main.c'], [sort @folders], 'every stage is in common/ladder.txt');

my $scratch = tempdir(CLEANUP => 1);
my ($tree, $out) = ("$scratch/tree", "$scratch/out");
system("mkdir '$tree' && cp -a Makefile common tests @folders '$tree'") == 0 or BAIL_OUT('cannot copy');
chdir $tree or BAIL_OUT("$tree: $!");
system("rm -f $_/$_") for @folders;
sub make { return scalar `make --no-print-directory @_ 2>&1 </dev/null` }
sub files { return scalar `find . -printf '%p %T@ %l\\n' | sort` }
sub would_compile { return scalar(() = make('-n', @_) =~ /"  compile /g) }

# ---- a folder elsewhere, and the tree stays as it is; a second time there is nothing to do
my $before = files();
my @naive = ('00_naive', 'DEVICE=cpu', "OUT=$out", 'KERNEL_OPTIMISE=-O1');
like(make(@naive), qr/^\Q$out\E\/00_naive\/00_naive is built for the CPU device: as asked$/m, 'an absolute OUT: it says where the program is');
ok(-x "$out/00_naive/00_naive", 'and there it is');
unlike(`'$out/00_naive/00_naive' --seqlen 8`, qr/^recorded/m, 'without result files it tells nothing of a GPU');
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
make(@naive, 'WARN=-w');
cmp_ok(would_compile(@naive, 'WARN=-w'), '==', 0, 'with the other flags it is then built');
cmp_ok(would_compile(@naive), '==', $all, 'and back');

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

# ---- a new stage: what is forgotten is told in one line
my $new = '09_twenty_characters';
sub write_to { my ($mode, $file, $text) = @_; open my $to, $mode, $file or die "$file: $!"; print $to $text; close $to }
sub told {
    my ($name, $line) = @_;
    my $said = make($new, @naive[1 .. 3]);
    ok($? != 0 && $said =~ /\A(?:Makefile:\d+: \*\*\* )?\Q$line\E(?:  Stop\.)?\n(?:make: \*\*\* .*\n)?\z/, $name) or diag($said);
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
told("another name than the folder's", qq{$new/main.c has no .name = "$new": a stage has its folder's name.});
system("sed -i 's/09_another/$new/' $new/main.c");
like(make($new, @naive[1 .. 3]), qr/^\Q$out\E\/$new\/$new is built/m, 'then it is built');
is(`$out/$new/$new --seqlen 8 2>&1`, "$new: the row of v in main.c needs .launch and .dtypes\n", 'a row without .launch');
is($? >> 8, 2, 'exit code 2');
system("rm -r $new && sed -i '/^$new/d' common/ladder.txt");

# ---- how one asks for a stage
like(make('-n', '00_naive/', 'DEVICE=cpu'), qr/00_naive\/00_naive is built/, 'make 00_naive/: as the shell completes it');
sub inside { return scalar `cd 00_naive && make --no-print-directory @_ 2>&1 </dev/null` }
like(inside('-n', 'DEVICE=cpu'), qr/00_naive\/00_naive is built/, "make in a stage's folder builds it");
like(inside('-n', '00_naive', 'DEVICE=cpu'), qr/00_naive\/00_naive is built/, 'with its name, too');
like(inside('help'), qr/^make clean  .*^make test  /ms, 'make help there');
like(inside('-n', 'clean'), qr/^rm -rf build .*00_naive\/00_naive/m, 'make clean there');
like(inside('-n', 'test-quick', 'DEVICE=cpu'), qr/^env .*prove .*grid_00_naive/m, 'make test-quick there');
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
     ['trace-07_flash_decoding TRACE_OPTIONS=--warm', qr/07_flash_decoding --trace --warm$/m, 'or what is asked for']) {
    my ($target, $runs, $name) = @$_;
    like(make(@traced, $target), $runs, "make $target: $name");
}

my $profile = make('profile-07', 'DEVICE=cpu') =~ s/^make: .*\n//mr;
like($profile, qr/\Aprofile-07_flash_decoding: needs a GPU and ncu .{1,90}\n\z/, 'make profile without a GPU: one line');
cmp_ok(length $profile, '<=', 121, 'of at most 120 characters');

# ---- which device: nvidia-smi's excuses are not a GPU
mkdir "$scratch/bin";
for (["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that 12.4 is installed.", 9, 'cpu', '75 80 89 90a'],
     ['No devices were found', 6, 'cpu', '75 80 89 90a'], ['[N/A]', 0, 'cpu', '75 80 89 90a'], ['', 127, 'cpu', '75 80 89 90a'],
     ['8.6', 0, 'cuda', '86'], ["9.0\n9.0", 0, 'cuda', '90a'], ['12.0', 0, 'cuda', '120']) {
    my ($says, $code, $device, $arch) = @$_;
    program('nvcc', '', 0), program('nvidia-smi', $says, $code);
    my ($now) = `PATH='$scratch/bin':"\$PATH" make help 2>&1` =~ /^(DEVICE=.*)/m;
    my $reason = $device eq 'cuda' ? 'nvcc and a GPU are here' : 'nvcc is here but nvidia-smi shows no GPU';
    like($now // '', qr/now: $device \($reason\);.*now: $arch$/, 'nvidia-smi says "' . ($says =~ s/\n.*//sr) . "\": $device, $arch");
}
chdir '/';
done_testing;

sub program {
    my ($name, $says, $code) = @_;
    open my $to, '>', "$scratch/bin/$name" or die "$name: $!";
    print $to "#!/bin/sh\ncat <<'END'\n$says\nEND\nexit $code\n";
    close $to;
    chmod 0755, "$scratch/bin/$name";
}
