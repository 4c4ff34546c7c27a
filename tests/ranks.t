#!/usr/bin/env perl
# ranks.t - 12 with one process per GPU: two processes that exchange keys, and parts of gradients, through NCCL agree with
# 00_naive as one process does. For two GPUs with NCCL; how processes meet and end is asked by meeting.c without any.
use strict;
use warnings;
use Test::More;
use File::Temp qw(tempdir);
use lib 'tests';
use Program;

plan skip_all => 'for several GPUs' if ($ENV{TEST_DEVICE} // '') ne 'cuda' || (my @gpus = `nvidia-smi -L 2>/dev/null`) < 2;
my $folder = tempdir(CLEANUP => 1);
my @problems = ('--causal --heads 4 --kv-heads 2 --seqlen 1000', '--batch 3 --lengths 900,0,65 --heads 2 --seqlen 300 --seqlen-k 900 --head-dim 128 --dtype bf16');

# Exit code and output of both.
sub two {
    my ($command) = @_;
    my $processes = join ' ', map { "RANK=$_ LOCAL_RANK=$_ WORLD_SIZE=2 $command --rendezvous $folder/meeting >$folder/out$_ 2>$folder/err$_ & p$_=\$!;" } 0, 1;
    system('sh', '-c', "$processes wait \$p1; b=\$?; wait \$p0; exit \$((\$? + 10 * b))");
    return ($? >> 8, map { read_text("$folder/$_") } qw(out0 out1 err0 err1));
}

my @first = two('12_context_parallel/12_context_parallel --seqlen 64 --iters 1');
plan skip_all => 'NCCL is not here' if $first[3] =~ /install NCCL/;
for my $stage (qw(12_context_parallel 12_context_parallel_backward)) {
    for my $problem (@problems) {
        my ($code, $out, $other, @said) = two("$stage/$stage $problem --iters 3");
        is($code, 0, "$stage $problem") or diag($out, @said);
        like($out, qr/^PASS +\d variants agree/m, 'the first has the verdict');
        is($other, '', 'the other prints nothing');
    }
}
my ($code, $out, $other, @said) = two('12_context_parallel/12_context_parallel --variant rounds --devices 3');
is($code, 22, 'more devices than processes: exit code 2 of both');
done_testing();
