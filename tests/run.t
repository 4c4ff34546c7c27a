#!/usr/bin/env perl
# run.t - what a stage prints: the table, its JSON and CSV twins, and exit codes.
use strict;
use warnings;
use utf8;
use File::Temp qw(tempdir);
use Test::More;
use JSON::PP;
use Scalar::Util qw(looks_like_number);
use lib 'tests';
use Npy;
use Program;
binmode(Test::More->builder->$_, ':utf8') for qw(output failure_output);

my @small = ('--batch', 2, '--heads', 2, '--seqlen', 40, '--seqlen-k', 56, '--head-dim', 64, '--iters', 2);
my @variants = ('00_naive', '01_tiled/fma', '01_tiled/mma');

# ---- the table
my $run = run('01_tiled', @small, '--causal', '--lengths', '56,17');
is($run->{code}, 0, 'all variants agree: exit code 0') or diag($run->{out}, $run->{err});
is($run->{err}, '', 'no progress where stderr is not a terminal');
my @lines = split /\n/, $run->{out};
like($lines[0], qr/^device   \S.*, \S/, 'the device');
is($lines[1], 'problem  forward, batch 2, heads 2/2, seqlen 40x56, head_dim 64, fp16, causal, key lengths 56,17', 'the problem');
my $on_gpu = ($ENV{TEST_DEVICE} // 'cpu') eq 'cuda';
is(splice(@lines, 2, 1), "times    are the simulator's: they say nothing about a GPU, not even which variant is faster", 'whose times these are') if !$on_gpu;
like($lines[2], $on_gpu ? qr/^variant +latency +min +TFLOP\/s +of peak +tensors \+ workspace +vs naive +error \/ allowed$/
    : qr/^variant +simulated +bytes moved +FLOPs\/byte +tensors \+ workspace +error \/ allowed$/, 'the titles');
for my $i (0 .. 2) {
    my $number = qr/\d+(\.\d+)?/;
    my $bytes = qr/$number [KMG]iB/;
    like($lines[3 + $i], $on_gpu ? qr/^\Q$variants[$i]\E +$number [um]s +$number [um]s +$number +(?:-|$number%) +$bytes \+ $bytes +${number}x +\S+ \/ \S+$/
        : qr/^\Q$variants[$i]\E +$number [um]s +$bytes +$number +$bytes \+ $bytes +\S+ \/ \S+$/, "the row of $variants[$i]");
    is(length $lines[3 + $i], length $lines[2], 'ends where the titles end');
    like($lines[6 + $i], qr/^workspace  \Q$variants[$i]\E: S $bytes, P $bytes$/, 'its workspace by purpose');
}
is($lines[-1], 'PASS  2 variants agree with 00_naive', 'the verdict');

like(run('01_tiled', @small, '--variant', $_)->{out}, qr/\n01_tiled\/mma .*\nPASS  1 variant agrees with 00_naive\n\z/s, "--variant $_")
    for 'mma', '01_tiled/mma';
like(run('00_naive', @small)->{out}, qr/\nPASS  00_naive agrees with the fp64 oracle on 64 rows\n\z/, 'the verdict on 00_naive');
like(run('00_naive', @small, '--batch', 1, '--heads', 1)->{out}, qr/on 40 rows\n\z/, 'a small problem is checked whole');
is(run('01_tiled', @small, '--variant', '00_naive')->{out} =~ s/.*\n(?=PASS)//sr, "PASS  00_naive agrees with the fp64 oracle on 64 rows\n",
    '--variant 00_naive in another stage');

# ---- unusual problems
for my $case (
    ['one query, one key', '--seqlen', 1],
    ['more queries than keys, causal: rows without keys', '--seqlen', 70, '--seqlen-k', 9, '--causal'],
    ['no key at all', '--lengths', '0'],
    ['key lengths 0 and all', '--lengths', '0,56'],
    ['grouped heads', '--heads', 4, '--kv-heads', 1],
    ['bf16', '--dtype', 'bf16'],
    ['fp32', '--dtype', 'fp32'],
    ['peaked softmax', '--scale', 6],
    ['the first device', '--device', 0],
    ['another seed', '--seed', 18446744073709551615],
) {
    my ($name, @options) = @$case;
    my $run = run('01_tiled', @small, @options);
    ok($run->{code} eq 0 && $run->{out} =~ /\nPASS/, $name) or diag($run->{out}, $run->{err});
}

like(run('10_block_sparse', @small, '--blocks', $_)->{out}, qr/\nPASS/, "--blocks $_") for 'documents:30+26', 'documents:0+30+0+26+0', 'random:0:1', 'random:100:1';
my %masks = ('' => 'window:256', '--blocks all' => 'all', '--blocks window:7' => 'window:7');
like(run('10_block_sparse', @small, split ' ')->{out}, qr/, blocks $masks{$_}\n/, "10_block_sparse $_: the mask is $masks{$_}") for sort keys %masks;

like(run('11_score_mod', @small, map { ('--score', $_) } split ' ')->{out}, qr/\nPASS/, "--score $_") for 'softcap:30 window:9,0', 'alibi sink', 'window:0,0';

# ---- a bound as wide as the result: of O, and then LSE decides; of both
$run = run('01_tiled', @small, '--scale', 1e5);
is($run->{code}, 0, 'scores so large that rounding alone may change O: LSE decides');
like($run->{out}, qr/^01_tiled\/mma: not checked: rounding alone may change O by [\d.]+, and it is at most [\d.]+$/m, 'a line why O is not checked');
like($run->{out}, qr/\nPASS  2 variants agree with 00_naive; not checked: O\n\z/, 'and the verdict says that it was not');
my $orthogonal = tempdir(CLEANUP => 1); # scores of 0 whose terms would be 1e12 if Q and K had the same direction
write_text("$orthogonal/q.npy", npy('<f4', [1, 1, 40, 64], [(1e6, (0) x 63) x 40]));
write_text("$orthogonal/k.npy", npy('<f4', [1, 1, 56, 64], [(0, 1e6, (0) x 62) x 56]));
write_text("$orthogonal/v.npy", npy('<f4', [1, 1, 56, 64], [(1) x (56 * 64)]));
my @orthogonal = ('--load', $orthogonal, '--dtype', 'fp32', '--variant', 'fma', '--iters', 1);
$run = run('01_tiled', @orthogonal);
is($run->{code}, 2, 'nor can LSE be checked: exit code 2');
like($run->{out}, qr/^\Q$_\E .* not checked$/m, "a row that says so: $_") for @variants[0, 1];
like($run->{out}, qr/^01_tiled\/fma: not checked: rounding alone may change O by .*, and it is at most 1; LSE by .*, and it is at most 4$/m, 'and a line why');
like($run->{out}, qr/\nNOT CHECKED  nothing checked in 2 of 2 results: .*\n\z/, 'the verdict is not PASS');
my @unchecked = map { decode_json($_) } split /\n/, run('01_tiled', @orthogonal, '--json')->{out};
ok(@unchecked == 2 && !(grep { defined $_->{ok} } @unchecked), 'JSON: ok is null');
ok($_->{worst_error} < $_->{allowed_error} && $_->{note} =~ /^not checked: rounding alone may change O by /, 'JSON: and the note says why')
    for @unchecked;
is(run('01_tiled', @small, '--scale', 1e4)->{code}, 0, 'a tenth of that can be checked');
is(run('01_tiled', @small, '--scale', 1e5, '--no-validate')->{code}, 0, 'nobody asked for a check');
# ---- nor is it far above what a right kernel does: in fp32, where it is made of nothing but estimates
for my $row (map { decode_json($_) } split /\n/, run('01_tiled', @small, '--seqlen', 256, '--dtype', 'fp32', '--variant', 'fma', '--json')->{out}) {
    cmp_ok($row->{worst_error}, '>', $row->{allowed_error} / 20, "$row->{variant} in fp32: an error that is worth comparing");
}

# ---- JSON and CSV. What stands in the fields is figures.c's, how it is written report.c's
my @fields = qw(stage variant direction batch heads kv_heads seqlen_q seqlen_k head_dim dtype causal lengths scale settings inputs seed l2
    iters runs latency_ms min_ms iqr_ms noisy tflops dense_tflops percent_of_peak gbps tensor_bytes workspace_bytes gpu_bytes
    gpu_flops_per_byte read_gbps copy_gbps rmse worst_fp64_error worst_error allowed_error ok device clock_mhz cuda commit note);

sub json_rows { return map { decode_json($_) } split /\n/, run('01_tiled', @small, '--json', @_)->{out} }

my @rows = json_rows('--heads', 4, '--kv-heads', 2, '--causal');
is_deeply([map { $_->{variant} } @rows], \@variants, 'JSON: one object a variant');
for my $row (@rows) {
    is_deeply([sort keys %$row], [sort @fields], "JSON: the fields of $row->{variant}");
    ok($row->{causal} && $row->{ok} && JSON::PP::is_bool($row->{ok}), 'JSON: true is true');
    ok($row->{latency_ms} >= $row->{min_ms} && $row->{min_ms} > 0, 'JSON: median and least time');
}

@rows = json_rows('--dtype', 'fp32');
ok($rows[1]{ok}, 'an unsupported variant does not stop the others');
is($rows[2]{latency_ms}, undef, 'it has no latency');
is($rows[2]{ok}, undef, 'it is neither right nor wrong');
is($rows[2]{note}, 'not run: takes fp16, bf16, not fp32', 'it says why');

@rows = json_rows('--variant', 'mma', '--no-validate');
is(scalar @rows, 1, '--variant with --no-validate runs that one alone');
is($rows[0]{ok}, undef, '--no-validate: ok is not known');
ok($rows[0]{latency_ms} > 0, 'but the latency is');
@rows = json_rows('--variant', 'mma', '--no-validate', '--save', tempdir(CLEANUP => 1));
is(scalar(@rows) . ($rows[0]{ok} // ' not known'), '1 not known', 'ok is not known with --save, either');
like(run('01_tiled', @small, '--no-validate')->{out}, qr/not validated\n.*\nnot validated\n\z/s, 'the table says so too');

my ($header, @csv) = split /\n/, run('01_tiled', @small, '--csv', '--dtype', 'fp32')->{out};
is($header, join(',', @fields), 'CSV: the header');
is(scalar @csv, 3, 'CSV: a row a variant');
# ---- several problems: for each what it is alone, the titles of CSV once
my @axes = ('--heads', '2,4', '--kv-heads', 2, '--mask', 'full,causal');
my @words = map { my $heads = $_; map { [$heads, $_] } 'full', 'causal' } 2, 4;
$run = run('01_tiled', @small, @axes);
is($run->{code}, 0, 'several problems: exit code 0') or diag($run->{out}, $run->{err});
my @tables = split /\n\n/, $run->{out};
is(pop @tables, "4 problems: 4 good, 0 bad, 0 not run or not checked\n", 'and a line about all of them');
is(scalar @tables, 4, 'a table for each');
like($tables[$_], qr/\Adevice .*\nproblem .* heads $words[$_][0]\/2, .* $words[$_][1]\n([\w ].*\n){7,10}PASS .*\z/, "@{$words[$_]}: a whole one") for 0 .. 3;
my @same = grep { !/latency|_ms|tflops|gbps|percent/ } @fields;
my @together = json_rows(@axes);
for my $i (0 .. 3) {
    my ($heads, $mask) = @{$words[$i]};
    my @alone = json_rows('--heads', $heads, '--kv-heads', 2, '--mask', $mask);
    is_deeply([map { [@$_{@same}] } @together[3 * $i .. 3 * $i + 2]], [map { [@$_{@same}] } @alone], "$heads $mask: the same rows as alone");
}
my @lines_of_csv = split /\n/, run('01_tiled', @small, '--csv', @axes)->{out};
is(scalar(grep { /^stage,/ } @lines_of_csv) . ' ' . @lines_of_csv, '1 13', 'CSV: the titles once, and all rows');

# ---- on the CPU device what an H200 took, as the result files have it
SKIP: {
    skip 'a GPU takes its own time', 3 + stages() if $on_gpu;
    my $results = 'notes/results/nvidia-h200';
    my %machine = read_text("$results/machine.tsv") =~ /^(\w+)\t(.*)$/mg;
    my @records = map { decode_json($_) } map { split /\n/, read_text("$results/$_.jsonl") } qw(ladder backward fp8 decode);
    for my $stage (stages()) {
        my @own = grep { $_->{stage} eq $stage && $_->{variant} =~ /^$stage/ && $_->{direction} =~ /^(for|back)ward$/ } @records;
        my $took = join(', ', map { ($_->{variant} =~ s{.*/}{}r) . sprintf ' %.3g', $_->{latency_ms} } @own) =~ s/ [\d.]+\K/ ms/r;
        my $shape = (kind_of($stage) eq 'BACKWARD' ? 'backward' : 'forward') . ', ' .
            ($stage =~ /^07/ ? 'batch 1, 32/8 heads, 1x65536' : 'batch 4, 16 heads, 4096') . ', head dim 128, fp16, full';
        my ($line) = (run($stage, @small, '--seqlen', 8, '--no-validate')->{out} =~ s/\n {11}/ /gr) =~ /^(recorded .*)/m;
        is($line, @own ? "recorded on an $machine{GPU}, $machine{date}, $shape: $took" : undef, "$stage: the line recorded");
    }
    my $tuned = run('04_fa2', @small, '--variant', 'tuned')->{out};
    my ($took) = map { sprintf '%.3g', $_->{latency_ms} } grep { $_->{variant} eq '04_fa2/tuned' } @records;
    like($tuned, qr/^recorded on an [^:]*: tuned $took ms$/m, 'of the variant that runs');
    unlike(run('04_fa2', @small, '--seqlen', 8, split ' ')->{out}, qr/recorded/, "$_ has none")
        for '--csv', '--json', '--causal', '--lengths 5', '--mask causal --dtype bf16';
    like(run('04_fa2', @small, '--seqlen', 8, '--dtype', 'bf16')->{out}, qr/^recorded/m, 'another dtype has one, which names its own');
}

# ---- out of memory: S alone, 4 bytes a score, takes all there is: of a GPU more than any has, here what a made-up container has;
# one key each keeps it short
my $memory = $on_gpu ? 400 * 2**30 : 2**26;
$ENV{MEMORY_ROOT} = container($memory) if !$on_gpu;
my $queries = int(sqrt($memory / 16));
my @long = ('--batch', 1, '--heads', 1, '--seqlen', $queries, '--seqlen-k', 4 * $queries, '--head-dim', 64, '--iters', 1, '--lengths', 1);
$run = run('01_tiled', @long);
is($run->{code}, 2, 'nothing fits into memory: exit code 2');
like($run->{out}, qr/\n00_naive +out of memory: needs \d+\S* [MG]iB\n01_tiled\/fma +out of memory.*\nNOT RUN  no variant of 01_tiled/s, 'and rows that say so');
SKIP: {
    skip 'the host has memory of its own', 1 if $on_gpu; # 7/8 of 64 MiB are 58.7 MB: 57.4 fit, but not with the host's 2 MB
    like(run('00_naive', '--batch', 1, '--heads', 1, '--seqlen', 3050, '--head-dim', 64, '--iters', 1, '--lengths', 1)->{out},
        qr/\n00_naive +out of memory/, "the host's part is kept free");
}
like(run('01_tiled', @long, '--variant', $_->[0])->{out}, qr/\nNOT RUN  \Q$_->[1]\E cannot run this problem here\n\z/, "nothing but $_->[1] was tried")
    for ['fma', '01_tiled/fma'], ['00_naive', '00_naive'];
my $saved = tempdir(CLEANUP => 1);
run('01_tiled', @long, '--variant', 'fma', '--save', $saved);
ok(!-e "$saved/o.npy", '--save: nothing of a variant that did not run');
SKIP: {
    skip '02_online_softmax is not built', 3 unless -x '02_online_softmax/02_online_softmax';
    $run = run('02_online_softmax', @long);
    is($run->{code}, 0, 'where only 00_naive does not fit the others still run') or diag($run->{out}, $run->{err});
    like($run->{out}, qr/\n00_naive +out of memory.*\nPASS  \d variants? agrees? with the fp64 oracle on 64 rows\n\z/s, 'held against the oracle');
    run('02_online_softmax', @long, '--variant', 'online', '--save', $saved);
    ok(-e "$saved/o.npy", 'and saved');
}

done_testing();

