#!/usr/bin/env perl
# options.t - every mistake on the command line: exit code 2, nothing on stdout, one line on stderr that names the option and
# what it takes. None of these launches anything.
use strict;
use warnings;
use Test::More;
use File::Temp qw(tempdir);
use lib 'tests';
use Program;
of_the_host();

my $folder = tempdir(CLEANUP => 1);

sub refused_by {
    my ($stage, $text, @arguments) = @_;
    my $run = run($stage, @arguments);
    my $line = qr/\A$stage: .*$text.*\n\z/; # . does not match a newline: this is one line
    my $fits = length $run->{err} <= 121 || "@arguments" =~ /\S{40}/; # 120 columns and a newline; a long word is named whole
    ok($run->{code} eq 2 && $run->{out} eq '' && $run->{err} =~ $line && $fits, "@arguments")
        or diag("exit code $run->{code}, expected $text\nstdout: $run->{out}\nstderr: $run->{err}");
}
sub refused { refused_by('01_tiled', @_) }

# counts
for my $option ('batch', 'heads', 'kv-heads', 'seqlen', 'seqlen-k', 'head-dim', 'iters') {
    refused("--$option $_->[1]: choose a whole number from 1 to \\d+", "--$option", $_->[0])
        for ['0', '0'], ['-1', '-1'], ['ten', 'ten'], ['8x', '8x'], [' 8', ' 8'], ['+8', '\+8'], ['8.0', '8\.0'],
        ['99999999999', '9+'], ['99999999999999999999999', '9+'];
}
refused('--batch 65536: choose .* 65535', '--batch', 65536);
refused('--seqlen 1073741825: choose .* 1073741824', '--seqlen', 1073741825);
refused('--iters 1000001: choose .* 1000000', '--iters', 1000001);
refused("--seed $_: choose a whole number", '--seed', $_) for '-1', '1.5', 'x', '18446744073709551616';

# words
refused('--mask none: choose full\|causal', '--mask', 'none');
refused('--dtype fp12: choose fp16\|bf16\|fp32', '--dtype', 'fp12');
refused('--dtype FP16: choose fp16\|bf16\|fp32', '--dtype', 'FP16');
refused('--variant wgmma: choose 00_naive\|fma\|mma', '--variant', 'wgmma');
refused('--variant 02_fa/mma: choose', '--variant', '02_fa/mma');
refused('--variant 01_tiled/: choose', '--variant', '01_tiled/');
refused_by('00_naive', '--variant mma: choose 00_naive$', '--variant', 'mma');

# scale
refused("--scale $_: choose a number above 0", '--scale', $_) for '0', '-1', 'nan', 'inf', '1e39', '1e7', '1000001', '1,5', '0.5x', ' 1';

# inputs
refused("--inputs $_: choose normal\\|outliers", '--inputs', $_) for 'outlier', 'normal,outliers';

# the device
refused("--device $_: choose 0 or a whole number", '--device', $_) for '-1', 'x', '0,1', '2147483648';
refused('--device 99: choose a number below ' . (($ENV{TEST_DEVICE} // 'cpu') eq 'cpu' ? 1 : '\d+') . ', the number of devices$', '--device', 99);

# what is no option, or lacks a value or has one
refused('--sequence: no such option', '--sequence', 5);
refused('--seq: no such option', '--seq', 5); # short for two of them
refused('--seqlex: no such option', '--seqlex', 5); # as long as one of them
refused('-x: no such option', '-x');
refused("$_: no such option", $_) for '-help', '-h=1', '--', '--=3', '--batc=3', '--batch-size', '-batch';
for my $option ('batch', 'heads', 'kv-heads', 'seqlen', 'seqlen-k', 'head-dim', 'dtype', 'mask', 'lengths', 'scale', 'variant', 'iters', 'seed',
    'inputs', 'device', 'rendezvous', 'load', 'save', 'save-inputs', 'watch', 'roofline') {
    refused("--$option: its value is missing", @$_) for ["--$option"], ["--$option", ''], ["--$option="];
}
refused("--$_=1: takes no value", "--$_=1") for 'causal', 'warm', 'csv', 'json', 'no-validate', 'help';
refused('16: not an option', '--seqlen', 8, 16);
refused('mma: not an option', 'mma');

# together
refused('--csv and --json: choose one', '--csv', '--json');
refused('--csv and --json: choose one', '--json', '--csv');
refused('--csv and --watch: choose one', '--csv', '--watch', "$folder/x");
refused("--save and --$_->[0]: choose one", '--variant', 'mma', '--save', $folder, "--$_->[0]", @$_[1 .. $#$_]) for ['trace'], ['watch', "$folder/x"];
refused('--roofline: add --trace or --watch, which it belongs to', '--roofline', 'h100');
refused('--causal and --mask: choose one$', '--causal', '--mask', $_) for 'full', 'causal,full';
refused('--causal and --mask: choose one$', '--mask=full', '--causal');
refused("--$_ and --load: choose one\$", '--load', $folder, "--$_", $_ eq 'seed' ? 0 : 'normal') for 'seed', 'inputs';
refused('--save .*: choose the variant to save with --variant', '--save', $folder);
for my $option ('batch', 'heads', 'kv-heads', 'seqlen', 'seqlen-k', 'head-dim') {
    refused("--$option and --load: choose one", "--$option", 8, '--load', $folder);
}
refused('--head-dim: head dim 12: choose a multiple of 8 up to 256', '--head-dim', 12);
refused('--kv-heads: 3 .* choose a divisor of 4', '--heads', 4, '--kv-heads', 3);
refused('--kv-heads: 8 .* choose a divisor of 4', '--heads', 4, '--kv-heads', 8);
refused('--batch 300 times --heads 300: choose a product up to 65535', '--batch', 300, '--heads', 300, '--seqlen', 8);
refused('--lengths: 2 given: choose one .* each of the 3', '--batch', 3, '--lengths', '1,2');
refused('--lengths: 65: choose key lengths from 0 to 64', '--seqlen', 64, '--lengths', 65);
refused("--lengths $_->[1]: choose 0 or a whole number from 1 to 1073741824", '--lengths', $_->[0])
    for [',', ','], ['1,', '1,'], [',1', ',1'], ['1,,2', '1,,2'], ['-1', '-1'], ['x', 'x'], ['1;2', '1;2'], ['1, 2', '1, 2'];

# several values: each of them, and each combination, before anything runs
refused("--$_->[0] $_->[1]: choose", "--$_->[0]", $_->[1])
    for ['batch', '2,0'], ['heads', '2,'], ['kv-heads', ',2'], ['seqlen', '8,x'], ['seqlen-k', '8,,9'], ['seqlen', '8, 9'],
    ['head-dim', '64,257'], ['dtype', 'fp16,fp64'], ['mask', 'causal,none'];
refused("--$_ 2,3: choose a whole number", "--$_", '2,3') for 'iters', 'seed';
refused('--scale 1,2: choose a number', '--scale', '1,2');
refused('--inputs normal,outliers: choose', '--inputs', 'normal,outliers');
refused('--kv-heads: 4 .* choose a divisor of 6', '--heads', '4,6', '--kv-heads', '2,4', '--seqlen', 8);
refused('head dim 12: choose a multiple of 8', '--head-dim', '64,12', '--seqlen', 8);
refused('--lengths: 65: choose key lengths from 0 to 64', '--seqlen', '128,64', '--lengths', 65);
refused('--lengths: 2 given: choose one .* each of the 3', '--batch', '2,3', '--lengths', '1,2', '--seqlen', 8);
refused('--variant mma cannot run here: takes head dim 64, 128, not 72', '--variant', 'mma', '--head-dim', '64,72', '--seqlen', 8);
refused('--save-inputs.*: choose one value per option, since these make 2 problems', '--save-inputs', $folder, '--seqlen', '8,9');
refused('--save.*: choose one value per option, since these make 4 problems', '--save', $folder, '--variant', 'mma', '--seqlen', '8,9', '--mask', 'full,causal');
refused('these values make more than a million problems: choose fewer', '--seqlen', join(',', 1 .. 1001), '--seqlen-k', join(',', 1 .. 1000));
refused_by('06_fp8', '--format e4m3,e4: choose e4m3\|e5m2$', '--format', 'e4m3,e4');

my @huge = ('--seqlen', 1073741824);
refused('--batch 65535.*together too large for 64 bits', '--batch', 65535, '--heads', 1, @huge);
refused('--batch 1, --heads 1, .*together too large for 64 bits', '--batch', 1, '--heads', 1, '--seqlen', 268435457, '--seqlen-k', 1073741824);
refused('--variant mma cannot run here: takes fp16, bf16, not fp32', '--variant', 'mma', '--dtype', 'fp32', '--head-dim', 64);
refused('--variant mma cannot run here: takes head dim 64, 128, not 72', '--variant', 'mma', '--head-dim', 72);

# the environment
for my $threads ('0', '1025', '-1', '2x', 'all') {
    my $said = `HOST_THREADS=$threads ./01_tiled/01_tiled --seqlen 8 --batch 1 --iters 1 2>&1 >/dev/null`;
    is(($? >> 8) . " $said", "2 01_tiled: HOST_THREADS=$threads: choose a whole number from 1 to 1024\n", "HOST_THREADS=$threads");
}

# memory: of a container that has 64 MiB, seven eighths are for arrays.
SKIP: {
    skip "a GPU's memory is its own", 4 if ($ENV{TEST_DEVICE} // '') eq 'cuda';
    local @ENV{'MEMORY_ROOT', 'HOST_THREADS'} = (container(64 * 2**20), 1);
    my @large = ('--batch', 1, '--heads', 4, '--seqlen-k', 16, '--head-dim', 64, '--iters', 1); # at 65536 Q has 32 MiB, LSE 1
    my $text = 'no memory for batch 1, heads 4/4, seqlen 65536x16, head dim 64: the run needs %s MiB but has 56.0 MiB$';
    refused_by('01_tiled', sprintf($text, 163), @large, '--seqlen', '8,65536');       # 5 Q, 3 LSE
    refused_by('01_tiled', sprintf($text, '97\.0'), @large, '--seqlen', 65536, '--no-validate'); # 3 Q, 1 LSE
    refused_by('05_fa2_backward', sprintf($text, 322), @large, '--seqlen', 65536);    # 10 Q, 2 LSE
    my $run = run('01_tiled', @large, '--seqlen', 8);
    is($run->{code}, 0, 'a small one runs in 64 MiB') or diag($run->{err});
}

refused('--trace: this program was built without the trace; make trace-01_tiled', '--seqlen', 8, @$_) for ['--trace'], ['--watch', "$folder/x"];

# one process per GPU
refused('--rendezvous: 01_tiled runs on one device: choose 12_context_parallel or 12_context_parallel_backward', '--rendezvous', "$folder/x");
refused('--device and --rendezvous: choose one', '--rendezvous', "$folder/x", '--device', 0);
delete @ENV{grep /^(OMPI_|SLURM_|PMI_|RANK$|WORLD_SIZE$)/, keys %ENV};
refused_by('12_context_parallel', '--rendezvous: (the CPU device simulates all devices in one process|start 1 to 8 processes with mpirun)', '--rendezvous', "$folder/x");

# what one stage alone has
refused('--splits: no such option', '--splits', 4);
refused_by('06_fp8', "--format $_: choose e4m3\\|e5m2\$", '--format', $_) for 'e4', 'e4m3,', 'E4M3', 'fp16', '1';
refused_by('06_fp8', '--scaling row: choose tensor\|block', '--scaling', 'row');
refused_by('06_fp8', "--$_=1: takes no value", "--$_=1") for 'hadamard', 'smooth-k';
refused_by('05_fa2_backward', '--variant atomic cannot run here: takes fp16, bf16, not fp32', '--dtype', 'fp32', '--variant', 'atomic');
refused_by('05_fa2_backward', 'the forward pass cannot run here: 04_fa2/fma takes head dim 64, 128, not 72', '--head-dim', '64,72', '--seqlen', 8);
refused_by('07_flash_decoding', "--splits $_: choose auto or a whole number from 1 to", '--splits', $_) for '0', '-1', '1e3', '1025', 'Auto';
refused_by('07_flash_decoding', "--split-size $_: choose none or a whole number from 1 to", '--split-size', $_) for '0', 'x', '1048577';
refused_by('07_flash_decoding', '--kv-cache fp8: choose same\|e4m3', '--kv-cache', 'fp8');
refused_by('07_flash_decoding', "--page-size $_: choose none\\|16\\|64\\|128", '--page-size', $_) for 0, 17, 32, 256, '64k', '-16';
refused_by('07_flash_decoding', '--variant split_k cannot run here: has no 8-bit pages: with --page-size choose --kv-cache same',
    '--variant', 'split_k', '--page-size', 64, '--kv-cache', 'e4m3');
refused('--page-size: no such option', '--page-size', 64);
refused_by('07_flash_decoding', 'takes --splits or --split-size, not both', '--variant', 'split_k', '--splits', 2, '--split-size', 64);
refused_by('07_flash_decoding', "--variant $_ cannot run here: takes neither --splits nor --split-size: only split_k does", '--variant', $_, '--splits', 2)
    for 'one_block', 'equal_shares';
refused_by('07_flash_decoding', "--variant $_ cannot run here: takes --seqlen from 1 to 16, not 17", '--variant', $_, '--seqlen', 17)
    for 'one_block', 'split_k', 'equal_shares';

# the text of a block mask
for (['window', 'choose all\|window:W\|sink:S:W\|documents:A\+B\|strided:K\|random:PERCENT:SEED\|file:PATH$'], ['windows:3', 'choose all\|window:W'],
    (map { ["window:$_", 'choose a whole number from 1 to 1073741824 for W$'] } '', '0', '-1', '+1', '1.5', ' 1', '1,2', '1:2', '1073741825', '99999999999999999999'),
    ['strided:0', 'choose a whole number from 1 to 1073741824 for K$'], ['sink:4', 'from 1 to 1073741824 for S, and W after a colon$'],
    ['sink:0:4', 'for S, and W after a colon$'], ['sink:4:0', 'for W$'], ['sink:4:', 'for W$'], ['sink:4:4:4', 'for W$'],
    (map { ["random:$_:1", 'choose a number from 0 to 100 for PERCENT, and SEED after a colon$'] } '', '-1', '100.1', 'nan', 'inf', '1x', '0x9'),
    ['random:5', 'and SEED after a colon$'], (map { ["random:5:$_", 'choose a whole number from 0 to 18446744073709551615 for SEED$'] } '', 'x', '-1', '1.5'),
    (map { ["documents:$_", 'choose lengths that add up to 8, the number of keys$'] } '9', '4+5', '4+3', '8+1'),
    (map { ["documents:$_", 'choose a whole number from 0 to 1073741824 for each length$'] } '', '+8', '8+', '4++4', '4+-0+4', '4+4x', '4,4'),
    ['file:', '--blocks: : No such file or directory$'], ['file:/nowhere.npy', '--blocks: /nowhere.npy: No such file or directory$'], ['file:.', '--blocks: \.: must be a regular file$']) {
    my ($text, $says) = @$_;
    refused_by('10_block_sparse', $says, '--seqlen', 8, '--blocks', $text);
}
refused_by('10_block_sparse', 'documents:8: choose lengths that add up to 9', '--seqlen-k', '8,9', '--blocks', 'documents:8');
refused_by('10_block_sparse', '--blocks: its value is missing', '--blocks');
refused('--blocks: no such option', '--blocks', 'window:1');
like(run('10_block_sparse', '--seqlen', 8, '--seqlen-k', 9000, '--iters', 1, '--blocks', 'documents:' . join '+', (1) x 9000)->{out},
    qr/^variant .*\n00_naive .*^10_block_sparse\/skipping .*^PASS  /ms, 'however long, the table is there');
# the text of a score mod
for ((map { [$_, 'choose softcap:C\|alibi\|window:LEFT,RIGHT\|sink, each once$'] } 'cap', 'softcap', 'alibi2', 'alibi:2', 'sink:1', 'alibi+', '+alibi', 'alibi+alibi',
        'softcap:30+softcap:30', 'window:1,2,3', 'window:1,2 sink', 'softcap:30x', 'softcap:30,'),
    (map { ["softcap:$_", 'choose a number from 0.125 to 1000 for C$'] } '', '0', '-1', 'x', 'nan', 'inf', '1e9', '0x9', '0.1'),
    (map { ["window:$_", 'choose a whole number from 0 to 536870912 for LEFT$'] } '', '-1', '+1', 'x', '536870913', '99999999999999999999'),
    (map { ["window:4,$_", 'choose a whole number from 0 to 536870912 for RIGHT$'] } '', '-1', 'x'),
    (map { ["window:$_", 'choose two numbers for window:LEFT,RIGHT$'] } '4', '4:5', '1.5,2')) {
    my ($text, $says) = @$_;
    refused_by($_, $says, '--seqlen', 8, '--score', $text) for '11_score_mod', '11_score_mod_backward';
}
refused_by('11_score_mod', 'alibi\+alibi: choose .*, each once', '--score', 'alibi', '--score=alibi');
refused_by('11_score_mod', '--score: its value is missing', '--score');
refused_by('11_score_mod', '--variant fused cannot run here: takes alibi with neither softcap nor window',
    '--variant', 'fused', '--seqlen', 8, '--score', $_) for 'alibi+softcap:30', 'window:4,0+alibi';
refused_by('11_score_mod', '--variant fused cannot run here: takes --scale from 2\^-100 on with alibi', '--variant', 'fused', '--score', 'alibi', '--scale', '1e-31');
refused('--score: no such option', '--score', 'alibi');
refused_by('10_block_sparse', 'window:4\+window:5: choose a whole number from 1 to', '--blocks', 'window:4', '--blocks', 'window:5');
# the file of a block mask
sub write_table {
    my ($type, $shape, $bytes) = @_;
    open my $file, '>', "$folder/table.npy" or die "$folder: $!";
    my $header = "{'descr': '$type', 'fortran_order': False, 'shape': $shape, }";
    print $file "\x93NUMPY\x01\x00", pack('v', 118), sprintf("%-117s\n", $header), $bytes;
}
for (['<f2', '(2, 1)', "\0" x 4, "holds elements of type '<f2'; save booleans, '\\|b1'"], ['|b1', '(2,)', "\0" x 2, 'has 1 dimensions; it needs 2'],
    ['|b1', '(1, 2)', "\0" x 2, 'has 1x2 blocks, but it must have 2x1, of 128 queries and keys each'], ['|b1', '(2, 1)', "\0" x 3, 'holds 3 bytes of data, but its shape needs 2']) {
    write_table(@$_[0 .. 2]);
    refused_by('10_block_sparse', "table.npy: $_->[3]", '--seqlen', 129, '--seqlen-k', 128, '--blocks', "file:$folder/table.npy");
}

# an output that nobody gets
for my $options ('', '--csv', '--json', '--help') {
    my @problem = $options eq '--help' ? () : ('--seqlen', 8, '--batch', 1, '--iters', 1);
    for my $case (['>/dev/full', 'the output cannot be written: No space left on device'], ['>&-', 'stdout is closed, nothing can be printed']) {
        my ($where, $text) = @$case;
        my $said = `exec 3>&1; ./01_tiled/01_tiled @problem $options 2>&3 $where`;
        is(($? >> 8) . " $said", "2 01_tiled: $text\n", "01_tiled $options $where");
    }
}

# and what is no mistake
for my $good (['--help'], ['-h'], ['--batch', 2, '--help'], ['--seqlen=8', '--help'], ['--seed', '18446744073709551615', '--help']) {
    my $run = run('01_tiled', @$good);
    ok($run->{code} eq 0 && $run->{err} eq '', "@$good");
}
my $help = run('01_tiled', '--help')->{out};
is(run('01_tiled', '-h')->{out}, $help, '-h is --help');
like($help, qr/^  --batch N         batch entries, all of the same shape\n  --heads N         query heads per batch entry$/m, '--help: whole lines');
like($help, qr/$_/, "--help tells of $_")
    for '--batch', '--heads', '--kv-heads', '--seqlen N', '--seqlen-k', '--head-dim', '--dtype', '--mask', '--causal', '--lengths', '--scale',
    '\nthe problem\n', '\nthe run\n', '--variant', '--iters', '--seed', '--device N', '--inputs', '--warm', '--load', '--save', '--save-inputs DIR ', '--csv', '--json', '--no-validate', 'fma +tile', 'mma +tile', '\nTFLOP/s are ';

# what is there if nothing is given (options.c holds the parser to the same), and what one stage alone has
my %tells = (
    '01_tiled' => ['Without options: batch 4, heads 16/16, seqlen 4096x4096, head dim 128', 'Without options, on the CPU device: batch 1, heads 2/2, seqlen 256x1024, head dim 64'],
    '05_fa2_backward' => ['--load also reads do\.npy, and --save-inputs writes it: dO, the gradient .*', 'The forward pass runs first\. .*'],
    '06_fp8' => ["options of this stage", '--format N .*: e4m3\|e5m2', '--scaling N .*: tensor\|block', '--hadamard  .*'],
    '10_block_sparse' => ["options of this stage", '--blocks SPEC +all, window:W, sink:S:W, documents:.*; default:', 'window:256'],
    '11_score_mod' => ["options of this stage", '--score SPEC +softcap:C, alibi, window:LEFT,RIGHT, sink; several are combined; default: none'],
    '07_flash_decoding' => ['Without options: batch 1, heads 32/8, seqlen 1x65536, head dim 128', 'Without options, on the CPU device: batch 1, heads 8/2, seqlen 1x2048, head dim 64',
                            '--splits N .*: auto or a whole', 'number from 1 to 1024', '--kv-cache N .*: same\|e4m3', '--page-size N .*: none\|16\|64\|128'],
);
for my $stage (stages()) {
    my $help = run($stage, '--help')->{out};
    like($help, qr/^ *$_$/m, "$stage --help: $_") for @{$tells{$stage} // []};
    is(scalar(() = $help =~ /^Without options/mg), 2, "$stage --help: what it runs on a GPU, and on the CPU device");
    is(scalar(() = $help =~ /options of this stage/g), has_settings($stage) ? 1 : 0, "$stage --help: its own options");
    is(scalar(() = $help =~ /do\.npy/g), kind_of($stage) eq "BACKWARD" ? 1 : 0, "$stage --help: dO of a backward stage alone");
    like($help, qr/^variants\n( +\w+ +\S.*\n)* +00_naive +\S.*\n\z/m, "$stage --help: its variants");
}

done_testing();

sub has_settings {
    open my $main, '<', "$_[0]/main.c" or die "$_[0]/main.c: $!";
    return scalar grep { /\.settings\b/ } <$main>;
}
