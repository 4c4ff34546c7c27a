#!/usr/bin/env perl
# results.t - make results, with programs that only say they are a GPU's: which files there are, what is left out, that it resumes.
use strict;
use warnings;
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(stages read_text write_text);

plan skip_all => 'the CPU device will do for scripts' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';

is(scalar(`perl common/results/without.pl check 2>&1`), '', 'what without.pl leaves out is in the source');

# Each has one variant, writes its name into a file, and takes a millisecond more than the one before it.
my $scratch = tempdir(CLEANUP => 1);
sub fake_stages {
    my ($cuda) = @_;
    my $ms = 1;
    for my $stage (stages()) {
        make_path("$scratch/programs/$stage");
        my $direction = $stage =~ /backward/ ? 'backward' : 'forward';
        my $shown = $stage =~ /backward/ ? "04_fa2 $stage" : $stage; # the kernel that a stage builds on has a row in both stages' files
        write_text("$scratch/programs/$stage/$stage", <<"END");
#!/usr/bin/env perl
my \$options = "\@ARGV";
if (\$options eq '--help') { print "variants\\n  one\\n"; exit }
open my \$calls, '>>', '$scratch/calls'; print \$calls "$stage \$options\\n";
exit 2 if \$options =~ /--variant wgmma/; # no Hopper
if (\$options !~ /--json/) { print "device   Fake GPU, sm_75, 40 SMs\\n"; exit((\$ENV{WRONG} // '') eq '$stage') }
my \$cache = \$options =~ /e4m3/ ? 'e4m3' : 'same';
for my \$causal (\$options =~ /full,causal/ ? qw(false true) : \$options =~ /--causal/ ? 'true' : 'false') {
    print qq({"stage": "$stage", "variant": "\$_/one", "direction": "$direction", "causal": \$causal, "settings": "kv-cache=\$cache", )
        . qq("latency_ms": $ms, "note": null, "device": "Fake GPU", "cuda": $cuda, "commit": "abc"}\\n) for qw($shown);
}
END
        chmod 0755, "$scratch/programs/$stage/$stage";
        $ms++;
    }
}
sub results {
    my (@variables) = @_;
    unlink "$scratch/calls";
    my $said = `env PATH='$scratch/bin:$ENV{PATH}' RESULTS='$scratch/card' @variables sh common/results/measure.sh '$scratch/programs' 2>&1`;
    return {said => $said, code => $? >> 8, calls => -e "$scratch/calls" ? scalar(() = read_text("$scratch/calls") =~ /\n/g) : 0};
}
make_path("$scratch/bin");
write_text("$scratch/bin/$_", "#!/bin/sh\nexit 1\n") && chmod 0755, "$scratch/bin/$_" for qw(python3 nvidia-smi);

fake_stages('null');
like(results()->{said}, qr/\Aresults: needs a GPU: DEVICE=cuda\n\z/, 'programs of the CPU device are refused');
is(system("RESULTS='$scratch/cpu' sh common/results/cpu.sh '$scratch/programs'"), 0, 'what they print is recorded');
like(read_text("$scratch/cpu/04_fa2.txt"), qr/\Adevice /, 'in a file of each stage');
isnt(system("WRONG=04_fa2 RESULTS='$scratch/wrong' sh common/results/cpu.sh '$scratch/programs' >$scratch/said 2>&1"), 0, 'unless one is wrong');
ok(!-e "$scratch/wrong/04_fa2.txt", 'which leaves no file');
fake_stages('"13.0"');
my $run = results('PARTS="ladder forward decode fp8"', 'ROUNDS=2');
is($run->{code}, 0, 'it runs') or diag($run->{said});
like($run->{said}, qr/^forward: left out, not here: Hopper torch\ndecode: left out, not here: torch\nfp8: left out, not here: Hopper jax$/m, 'what is left out, and why');
like($run->{said}, qr{^02_online_softmax/one +3 ms}m, 'the ladder');
my %lines = map { $_ => scalar(() = read_text("$scratch/card/$_.jsonl") =~ /\n/g) } qw(ladder backward fp8 decode decode_e4m3 causal);
is(join(' ', map { "$_ $lines{$_}" } sort keys %lines), 'backward 4 causal 11 decode 1 decode_e4m3 1 fp8 1 ladder 6', 'a file for each problem');
like(read_text("$scratch/card/ladder.jsonl"), qr/\A\{.*"rounds": 2, /, 'a row is the median of the rounds');
like(read_text("$scratch/card/runs.tsv"), qr/^ladder\tabc\t20\d\d-.*\tladder.jsonl backward.jsonl fp8.jsonl decode.jsonl decode_e4m3.jsonl causal.jsonl 04_fa2.txt$/m, 'which part is of which commit');
is(join(' ', grep { /part$|round/ } map { s{.*/}{}r } glob "$scratch/card/*"), '', 'nothing half done is left');

$run = results('PARTS=ladder');
like($run->{said}, qr/^ladder: measured already$/m, 'a second call measures nothing again');
write_text("$scratch/card/runs.tsv", "part\tcommit\n");
write_text("$scratch/card/round-$_.jsonl", read_text("$scratch/card/ladder.jsonl")) for 1, 2;
my $before = results('PARTS=ladder', 'ROUNDS=3')->{calls};
write_text("$scratch/card/runs.tsv", "part\tcommit\n");
cmp_ok($before, '<', results('PARTS=ladder', 'ROUNDS=3')->{calls}, 'nor a round that was finished');
write_text("$scratch/card/runs.tsv", "part\tcommit\n");
$run = results('PARTS="ladder splits"', 'LIMIT=0');
like("$run->{code} $run->{said}", qr/\A2 ladder: no time left\nsplits: no time left\n(?:.*\n)*results: not measured: ladder splits; the same command again goes on\n\z/, 'no part begins after the limit');
write_text("$scratch/card/runs.tsv", "part\tcommit\n");
$run = results('PARTS=ladder', 'WRONG=07_flash_decoding');
like("$run->{code} $run->{said}", qr/\A2 ladder: failed: 07_flash_decoding is wrong\n/, 'no figure of a kernel that is wrong');
like(results('PARTS=lader')->{said}, qr/^results: PARTS=lader: choose from ladder /m, 'a part that is none');
done_testing;

