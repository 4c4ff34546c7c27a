#!/usr/bin/env perl
# backward.t - what a backward stage's program adds to the others: rows by direction, dO from a file, gradients to files. Whether the
# saved gradients are right is checked in numpy.t.
use strict;
use warnings;
use Test::More;
use JSON::PP;
use File::Temp qw(tempdir);
use lib 'tests';
use Npy;
use Program;

my $stage = '05_fa2_backward';
my @small = ('--heads', 4, '--kv-heads', 2, '--seqlen', 40, '--seqlen-k', 70, '--causal', '--iters', 1);

# ---- the table
my $run = run($stage, @small);
is($run->{code}, 0, 'the table: exit code 0') or diag($run->{err});
like($run->{out}, qr/^PASS  3 variants agree with 00_naive$/m, 'the verdict');
like($run->{out}, qr/^04_fa2\/tuned +forward /m, 'a row for the forward pass');
like($run->{out}, qr/^00_naive +backward /m, 'a row for the naive gradients');
for my $variant ('fma', 'two_pass', 'atomic') {
    like($run->{out}, qr/^$stage\/$variant +backward /m, "$variant: a row for the backward pass");
    like($run->{out}, qr/^$stage\/$variant +both /m, "$variant: a row for both");
    like($run->{out}, qr/^gradients  $stage\/$variant: dQ \S+ \/ \S+, dK \S+ \/ \S+, dV \S+ \/ \S+;\s+4\s+runs\s/m, "$variant: errors of each");
}
like($run->{out}, qr/^workspace  $stage\/atomic: .*dQ accumulator/m, 'the dQ accumulator is counted');
like($run->{out}, qr/two_pass: dQ .*;\s+4\s+runs\s+are\s+bit-equal$/m, 'two_pass repeats its bits');
{
    local $ENV{CPU_DEVICE_THREADS} = 8;
    like(run($stage, qw(--variant atomic --heads 1 --iters 1))->{out}, qr/atomic: dQ .*;\s+4\s+runs\s+differ\s+by\s+up\s+to\s/m, 'atomic does not');
    like(run('09_fa3_backward', qw(--variant ordered --heads 1 --iters 1))->{out}, qr/ordered: dQ .*;\s+4\s+runs\s+are\s+bit-equal$/m, 'ordered does');
}

# ---- a dtype that the forward pass does not take: the other one does
$run = run($stage, @small, '--dtype', 'fp32');
like($run->{out}, qr/^04_fa2\/fma +forward .*^PASS  1 variant agrees with 00_naive$/ms, 'fp32: the plain kernels, forward and backward');

# ---- JSON
$run = run($stage, @small, '--json', '--variant', 'atomic', '--no-validate');
my @rows = map { decode_json($_) } split /\n/, $run->{out};
is_deeply([map { "$_->{variant} $_->{direction}" } @rows],
    ['04_fa2/tuned forward', "$stage/atomic backward", "$stage/atomic both"], 'JSON: one row a direction');
like(run($stage, @small, '--variant', '00_naive')->{out}, qr/\nPASS  00_naive agrees with the fp64 oracle on \d+ rows\n\z/, 'what 00_naive is held against');
my @flops = map { $_->{tflops} * $_->{latency_ms} } @rows;
ok(abs($flops[1] / $flops[0] - 2.5) < 1e-9 && abs($flops[2] / $flops[0] - 3.5) < 1e-9, 'FLOPs 1 : 2.5 : 3.5');

# ---- mistakes: one line, exit code 2
my ($folder, @shape) = (tempdir(CLEANUP => 1), 1, 2, 3, 64); # of Q; K and V have one head
write_text("$folder/$_.npy", npy('<f4', $_ eq 'q' ? \@shape : [1, 1, 5, 64], [(2) x ($_ eq 'q' ? 384 : 320)])) for 'q', 'k', 'v';
complains('do.npy', '--load', $folder);
write_text("$folder/do.npy", npy('<f4', [1, 1, 5, 64], [(2) x 320]));
complains('do.npy and q.npy differ in shape', '--load', $folder);
write_text("$folder/do.npy", npy('<f4', \@shape, [(5e36) x 384]));
complains('--load: a sum of dS K or dS Q could reach ', '--load', $folder, '--dtype', 'fp32');
complains('head dim', '--head-dim', 96);
complains('--scale 1e+06: scores reach', '--scale', 1e6);
complains('choose a scale up to', '--scale', 4000);
{
    my @options = ('--batch', 1, '--heads', 1, '--seqlen', 8, '--head-dim', 64, '--variant', '00_naive', '--iters', 1);
    for my $seed (0 .. 4) {
        my ($most) = run($stage, @options, '--seed', $seed, '--scale', 1e6)->{err} =~ /choose a scale up to (\S+) here\n\z/;
        is(run($stage, @options, '--seed', $seed, '--scale', $most)->{err}, '', "--scale $most, which is proposed, is not refused");
        like(run($stage, @options, '--seed', $seed, '--scale', 1.01 * $most)->{err}, qr/choose a scale/, 'a hundredth more is');
    }
}
is(run($stage, '--batch', 1, '--heads', 2, '--seqlen', 64, '--head-dim', 64, '--scale', 1000, '--variant', 'atomic', '--iters', 1)->{code}, 0, 'a quarter of that is checked, and right');
done_testing;

sub complains {
    my ($text, @arguments) = @_;
    my $run = run($stage, @arguments);
    is("$run->{code} $run->{out}", '2 ', "@arguments: exit code 2, and no table");
    like($run->{err}, qr/^[^\n]*\Q$text\E[^\n]*\n\z/, "@arguments: one line that says $text");
}
