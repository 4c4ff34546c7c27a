#!/usr/bin/env perl
# primer.t - the five programs of notes/hopper.md: each finds itself right, prints what the page shows, and has no races under
# the trace; with a mistake of the page's exercises planted it ends with exit code 1.
use strict;
use warnings;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Scratch qw(read_file write_file);

my $build = $ENV{TEST_BUILD} || 'build/cpu';
my $on_gpu = ($ENV{TEST_DEVICE} // 'cpu') eq 'cuda';
my ($scratch, $root) = (tempdir(CLEANUP => 1), getcwd);
my $page = read_file('notes/hopper.md');

# A line of each program, what takes its place, and what is seen then; not in every order of the threads.
my @mistakes = (
    [copy => 'mbarrier_wait(&shared.full, 0);', '', qr/WRONG/],
    [phases => 'empty[stage(n)], parity(n) ^ 1);', 'empty[stage(n)], parity(n));', qr/thread 0 waits at mbarrier_wait/],
    [product => 'shared.b.offset_mn(STEP)', 'shared.b.offset(STEP)', qr/WRONG/],
    [fence => 'wgmma_fence(d);', '', qr/wgmma without a wgmma_fence/],
    [ring => 'mbarrier_wait(&shared.empty[stage(n)], parity(n) ^ 1);', '', qr/WRONG/],
);

for (@mistakes) {
    my ($name, $from) = @$_;
    my ($code, $said) = run("$build/notes/hopper/$name");
    SKIP: {
        skip 'this GPU is no Hopper', 3 if $on_gpu && $code == 2;
        is($code, 0, "$name: right") or diag($said);
        my ($shown) = $said =~ /^---- .*\n((?:.*\n)*?)(?:trace: (?:.*\n)*?)?right\n\n\z/m;
        skip 'on a GPU the threads come in another order', 2 if $on_gpu;
        ok(defined $shown && index($page, "```\n$shown```\n") >= 0, "$name: as the page shows it") or diag($said);
        like($said, qr/^trace: shared memory: .*\n(?:trace: .*\n)*right$/m, "$name: traced, and no race") if $build =~ /trace/;
    }
    is(scalar(() = read_file("notes/hopper/$name.cu") =~ /\Q$from\E/g), 1, "$name has the line of its mistake, once");
}

SKIP: {
    skip 'mistakes are planted on the CPU device', 1 if $on_gpu || $build =~ /trace/;
    symlink "$root/common", "$scratch/common" or BAIL_OUT("$scratch: $!");
    mkdir "$scratch/notes" and mkdir "$scratch/notes/hopper";
    write_file("$scratch/notes/hopper/primer.cuh", read_file('notes/hopper/primer.cuh'));
    my @libraries = map { "$build/common/$_.a" } qw(device cpu host);
    for ($ENV{TEST_ALL} ? @mistakes : $mistakes[0]) {
        my ($name, $from, $to, $says) = @$_;
        my $file = "$scratch/notes/hopper/$name.cu";
        write_file($file, read_file("notes/hopper/$name.cu") =~ s/\Q$from\E/$to/r);
        my $compile = ($ENV{CXX} || 'g++') . ' -x c++ -std=c++17 -O1 -w -pthread';
        my ($code, $said) = run("$compile $file -x none @libraries -lm -o $scratch/$name");
        is($code, 0, "$name: with its mistake, compiles") or diag($said);
        ($code, $said) = run("CPU_DEVICE_ORDER=reverse timeout 60 $scratch/$name");
        is($code, 1, "$name: and is wrong");
        like($said, $says, "$name: as it says");
    }
}
done_testing;

sub run {
    my ($command) = @_;
    my $said = `$command 2>&1 </dev/null`;
    return ($? & 127 ? 'signal ' . ($? & 127) : $? >> 8, $said);
}
