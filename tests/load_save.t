#!/usr/bin/env perl
# load_save.t - tensors from .npy files in, .npy files out. The program draws inputs, validates its outputs and saves both. The same
# inputs in every type then have to lead to the same outputs. numpy.t checks the values themselves.
use strict;
use warnings;
use Test::More;
use File::Temp qw(tempdir);
use lib 'tests';
use Npy;
use Program;
of_the_host();

my $root = tempdir(CLEANUP => 1);
my ($B, $H, $G, $SQ, $SK, $D) = (2, 4, 2, 5, 7, 64); # batch, heads, key/value heads, queries, keys, head dim

my @q_shape = ($B, $H, $SQ, $D);
my @k_shape = ($B, $G, $SK, $D);

sub folder {
    my ($name, %files) = @_;
    mkdir "$root/$name" or die "$root/$name: $!";
    write_text("$root/$name/$_.npy", $files{$_}) for keys %files;
    return "$root/$name";
}
sub values_of { my (undef, undef, $values) = read_npy($_[0]); return $values }

# ---- inputs: the program's own, rounded to fp16
my @drawn = ('--batch', $B, '--heads', $H, '--kv-heads', $G, '--seqlen', $SQ, '--seqlen-k', $SK, '--head-dim', $D);
my $drawn = folder('drawn');
run('01_tiled', @drawn, '--variant', 'mma', '--iters', 1, '--save-inputs', $drawn);
my ($q, $k, $v) = map { values_of("$drawn/$_.npy") } 'q', 'k', 'v';
sub inputs {
    my ($type) = @_;
    return (q => npy($type, \@q_shape, $q), k => npy($type, \@k_shape, $k), v => npy($type, \@k_shape, $v));
}

# The largest difference. Equal values, infinite ones too, differ by 0; NaN and lists of unequal length by infinity.
sub difference {
    my ($got, $want) = @_;
    return 9**9**9 if @$got != @$want;
    my $largest = 0;
    for my $i (0 .. $#$want) {
        my $error = $got->[$i] == $want->[$i] ? 0 : abs($got->[$i] - $want->[$i]);
        $largest = $error unless $error <= $largest;
    }
    return $largest;
}

# Runs with --save; the folder comes back. O has this type and LSE is in fp32, and there is nothing else.
my $saves = 0;
sub saved {
    my ($name, $variant, $type, @options) = @_;
    my $save = folder('save' . ++$saves);
    my $run = run('01_tiled', '--save', $save, '--variant', $variant, '--iters', 1, @options);
    is($run->{code}, 0, $name) or diag($run->{out}, $run->{err});
    my ($o_type, $o_shape) = read_npy("$save/o.npy");
    my ($lse_type, $lse_shape) = read_npy("$save/lse.npy");
    is("$o_type $o_shape $lse_type $lse_shape", "$type " . join(',', @q_shape) . ' <f4 ' . join(',', @q_shape[0 .. 2]), 'types and shapes');
    is(files($save), 'lse.npy o.npy', 'and nothing else in the folder');
    return $save;
}
# From what is loaded come the bits that come from what is drawn.
sub same {
    my ($name, $load, $variant, @options) = @_;
    my ($want, $got) = map { saved($name, $variant, '<f2', @$_, @options) } \@drawn, ['--load', $load];
    ok(read_text("$got/$_") eq read_text("$want/$_"), "$name: $_ as from inputs that are drawn") for 'o.npy', 'lse.npy';
    return $got;
}

my %load = (2 => $drawn, map { $_ => folder("in$_", inputs("<f$_")) } 4, 8);
my $f2 = same('fp16 in, fp16 out', $load{2}, 'mma');
my ($o, $lse) = map { values_of("$f2/$_.npy") } 'o', 'lse';
same("f$_ in, rounded to fp16", $load{$_}, 'mma') for 4, 8;
# Q as it is, and K and V in which keys that nobody may see, by entry and number, have NaN, infinity, and what would make every bound as
# wide as the result.
sub poisoned {
    my ($is_hidden) = @_;
    my %in = (q => npy('<f4', \@q_shape, $q));
    for my $file (['k', $k], ['v', $v]) {
        my @values = @{$file->[1]};
        for my $i (grep { $is_hidden->(int($_ / ($G * $SK * $D)), int($_ / $D) % $SK) } 0 .. $#values) {
            no warnings;
            $values[$i] = ('nan' + 0, 'inf' + 0, 6e4)[$i % 3];
        }
        $in{$file->[0]} = npy('<f4', \@k_shape, \@values);
    }
    return %in;
}
{
    my @lengths = (0, 3);
    my %in = poisoned(sub { my ($entry, $key) = @_; return $key >= $lengths[$entry] });
    my $padded = folder('padded', %in);
    my @behind = ('--lengths', '0,3');
    same('anything behind the key lengths', $padded, $_, @behind) for 'mma', '00_naive';
    my $run = run('05_fa2_backward', '--load', folder('padded_do', %in, do => $in{q}), '--iters', 1, @behind);
    is($run->{code}, 0, 'for gradients, too') or diag($run->{out}, $run->{err});
}
# And in a key that no query keeps. The 5 queries stand at the last 5 of 7 keys: a window of 2 leaves the first key to nobody, and a
# document of 2 the first two. One of 4 has two queries of its own.
for my $mask (['window:2', 1], ['documents:4+3', 2], ['documents:2+0+5', 2]) {
    my ($blocks, $first) = @$mask;
    my $is_kept = $blocks eq 'documents:4+3';
    my $folder = folder("unkept_$blocks", poisoned(sub { my ($entry, $key) = @_; return $key < $first }));
    my $run = run('10_block_sparse', '--load', $folder, '--blocks', $blocks, '--iters', 1);
    is($run->{code}, $is_kept ? 2 : 0, "NaN and infinity in the first keys, which --blocks $blocks leaves to " . ($is_kept ? 'two queries' : 'nobody'))
        or diag($run->{out}, $run->{err});
}
same('causal', $load{2}, 'mma', '--causal');
same('key lengths, one of them 0', $load{2}, 'mma', '--lengths', '0,3');
same('causal with key lengths', $load{4}, '00_naive', '--causal', '--lengths', '6,2');
same('scale', $load{4}, '01_tiled/fma', '--scale', 0.5);
same('not validated, saved all the same', $load{2}, 'mma', '--no-validate');
{
    my $save = saved('bf16', 'mma', '<f4', '--load', $load{4}, '--dtype', 'bf16');
    my $brain = values_of("$save/o.npy");
    is(scalar(grep { unpack('V', pack 'f<', $_) & 0xffff } @$brain), 0, 'o.npy holds bf16 values');
    cmp_ok(difference($brain, $o), '<=', 5e-2, 'O in bf16');
}
{
    # With one key O is V. 1 + 2^-11 + 2^-40 is just above the middle of two fp16 values; rounding to float first would hit it.
    my @one = (1, 1, 1, 64);
    my %in = map { $_ => npy('<f8', \@one, [(1 + 2**-11 + 2**-40) x 64]) } 'q', 'k', 'v';
    my $save = folder('one_save');
    run('01_tiled', '--load', folder('one', %in), '--save', $save, '--variant', 'mma', '--iters', 1);
    is(join(" ", @{values_of("$save/o.npy")}), join(" ", (1 + 2**-10) x 64), "f8 is rounded to fp16 once");
}

# Multiples of 1/64 below 2, which every dtype holds exactly.
sub random_values {
    my $state = 1;
    return [map { $state = ($state * 1103515245 + 12345) % 2**31; (int($state / 65536) % 257 - 128) / 64 } 1 .. $_[0]];
}

# ---- scores of 2^27, where floats are 16 apart, and m may lag behind them by 8: P must fit fp16 all the same. This catches also a softmax that
# forgets scores far out where no maximum moves
{
    my ($keys, $values) = (256, random_values(256 * $D));
    my @far_k = (0) x ($keys * $D);
    @far_k[200 * $D, 200 * $D + 1] = (2**13, 4); # the last key tile comes first
    @far_k[50 * $D, 50 * $D + 1] = (2**13, 8);
    my $far = folder('far', q => npy('<f4', [1, 1, 1, $D], [2**14, 4, (0) x ($D - 2)]), k => npy('<f4', [1, 1, $keys, $D], \@far_k),
        v => npy('<f4', [1, 1, $keys, $D], $values));
    for (['04_fa2', 'tuned'], ['08_fa3', 'overlapped'], ['10_block_sparse', 'masked'], ['10_block_sparse', 'skipping']) {
        my ($stage, $variant) = @$_;
        my $save = folder("far-$stage-$variant");
        run($stage, '--load', $far, '--save', $save, '--variant', $variant, '--iters', 1, '--no-validate', '--scale', log(2));
        cmp_ok(difference(values_of("$save/o.npy"), [@$values[50 * $D .. 51 * $D - 1]]), '<=', 2e-3, "$stage/$variant: far scores, O is the largest one's V");
    }
}

# ---- what fp32 has no room for: refused, with the factor that helps, and right with it
{
    my %numbers = (q => random_values(64 * 64), k => random_values(192 * 64), v => random_values(192 * 64));
    my ($folders, $run) = (0);
    my $times = sub { # one tensor times a power of two
        my ($which, $power) = @_;
        return folder('times' . ++$folders,
            map { my $size = $_ eq $which ? 2**$power : 1; $_ => npy('<f4', [1, 1, @{$numbers{$_}} / 64, 64], [map { $_ * $size } @{$numbers{$_}}]) } keys %numbers);
    };
    for (['04_fa2', 'v', 'a sum of P V', 'V'], ['06_fp8', 'v', 'a sum of P V', 'V', '--format', 'e5m2'],
         ['06_fp8', 'v', 'a sum of P V', 'V', '--scaling', 'block'], ['04_fa2', 'q', 'a score', 'Q or K']) {
        my ($stage, $tensor, $sum, $cure, @options) = @$_;
        my $try = sub { run($stage, '--load', $times->($tensor, $_[0]), '--dtype', 'bf16', '--iters', 1, @options) };
        $run = $try->(124);
        like("$run->{code} $run->{out}$run->{err}", qr/\A2 $stage: --load: $sum could reach \S+, but fp32 ends at 3\.4e\+38: choose $cure smaller, by a factor of 2\^\d+ or more\n\z/,
            "$stage @options: $tensor of 2^124 is refused");
        my ($power) = $run->{err} =~ /2\^(\d+)/;
        is($try->(125 - $power)->{code}, 2, 'and so is twice what is proposed');
        $run = $try->(124 - $power);
        is($run->{code}, 0, 'which is right') or diag($run->{out}, $run->{err});
    }
    $run = run('04_fa2', '--load', $times->('v', -134), '--dtype', 'fp32', '--iters', 1);
    like($run->{out}, qr/\nPASS  1 variant agrees with 00_naive\n\z/, 'V below the normal numbers of fp32, whose products are rounded to steps');
}

# ---- what is refused: one line, exit code 2, no table

my $bad = 0;
sub refused {
    my ($text, $files, @options) = @_;
    my $load = ref $files ? folder('bad' . ++$bad, inputs('<f4'), %$files) : $files;
    unlink "$load/$_.npy" for ref $files ? grep { !defined $files->{$_} } keys %$files : ();
    my $run = run('01_tiled', '--load', $load, @options);
    ok($run->{code} eq 2 && $run->{out} eq '' && $run->{err} =~ /\A01_tiled: .*$text.*\n\z/, "refused: $text")
        or diag("exit code $run->{code}\nstdout: $run->{out}\nstderr: $run->{err}");
}
{
    no warnings;
    my $file = npy('<f4', \@k_shape, $k);
    refused('--load: .*nowhere/q\.npy', "$root/nowhere");
    refused("--load: .*$_.npy", {$_ => ''}) for 'q', 'k', 'v';
    refused('--load: .*k\.npy', {k => $file . 'x'}); # npy.c has all that can be wrong with one file
    refused('k\.npy and v\.npy differ in shape', {v => npy('<f4', [$B, $SK, $G, $D], $v)});
    refused('q\.npy and k\.npy differ in batch \(4, 2\)', {q => npy('<f4', [4, 2, $SQ, $D], $q)});
    refused('or head_dim \(32, 64\)', {q => npy('<f4', [$B, $H, 2 * $SQ, 32], $q)});
    refused('2 key/value heads: choose a divisor of 5', {q => npy('<f4', [$B, 5, $H, $D], $q)});
    refused('--load: head dim 4: choose a multiple of 8', {map { $_ => npy('<f4', [1, 1, 1, 4], [1 .. 4]) } 'q', 'k', 'v'});
    refused('q\.npy: dimension 1 of its shape is 0: choose 1 to 65535', {q => npy('<f4', [$B, 0, $SQ, $D], [])});
    refused('q\.npy: dimension 3 of its shape is 320: choose 1 to 256', {q => npy('<f4', [$B, $H, 1, $SQ * $D], $q)});
    my @with = @$q;
    $with[77] = 'nan' + 0;
    $with[2000] = 'inf' + 0;
    refused('q\.npy\[batch 0, head 0, row 1, column 13\] is -?nan, not a finite number in fp16', {q => npy('<f4', \@q_shape, \@with)});
    $with[77] = $q->[77];
    $with[2000] = 70000;
    refused('q\.npy\[batch 1, head 2, row 1, column 16\] is 70000, not a finite number in fp16', {q => npy('<f4', \@q_shape, \@with)});
    my @behind = @$v; # entry 1, head 1, row 3, column 5
    $behind[((1 * $G + 1) * $SK + 3) * $D + 5] = 'nan' + 0;
    my $where = 'v\.npy\[batch 1, head 1, row 3, column 5\] is -?nan';
    refused($where, {v => npy('<f4', \@k_shape, \@behind)}, @$_) for [], ['--lengths', '3,4'];
}
refused('--lengths: 8: choose key lengths from 0 to 7', $load{2}, '--lengths', 8);
refused('--lengths: 3 given', $load{2}, '--lengths', '1,2,3');

{
    # Q of a TiB, most of it a hole in the file, in a container of 64 MiB: refused by the headers, no memory is asked for.
    my $small = npy('<f8', [1, 1, 1, 256], [1 .. 256]);
    my $load = folder('long', k => $small, v => $small, q => npy('<f8', [1, 1, 2**29, 256], []));
    truncate("$load/q.npy", (-s "$load/q.npy") + 2**40) or die "$load/q.npy: $!";
    local $ENV{MEMORY_ROOT} = container(64 * 2**20);
    refused('no memory for batch 1, heads 1/1, seqlen 536870912x1, head dim 256: the ', $load);
}

# ---- the inputs of a run, to be loaded again

sub files { my ($folder) = @_; opendir(my $directory, $folder); return join ' ', sort grep { !/^\.\.?$/ } readdir $directory }
my $saves_inputs = 0;
sub saves_inputs {
    my ($name, $stage, $variant, $outputs, @options) = @_;
    my $folder = folder('inputs' . ++$saves_inputs);
    my @shape = ('--batch', 3, '--heads', 4, '--kv-heads', 2, '--seqlen', 5, '--seqlen-k', 7, '--head-dim', 64);
    my @run = ($stage, '--variant', $variant, '--iters', 1, @options);
    mkdir "$folder/$_" for 'in', 'first', 'again';
    my $run = run(@run, @shape, '--seed', 3, '--save-inputs', "$folder/in", '--save', "$folder/first");
    is($run->{code}, 0, "--save-inputs, $name: exit code 0") or diag($run->{out}, $run->{err});
    run(@run, '--load', "$folder/in", '--save', "$folder/again");
    ok(length(read_text("$folder/first/$_")) && read_text("$folder/again/$_") eq read_text("$folder/first/$_"), "from them --load computes the same $_")
        for @$outputs;
    return "$folder/in";
}
{
    my $in = saves_inputs('fp16', '01_tiled', 'mma', ['o.npy', 'lse.npy']);
    is(files($in), 'k.npy q.npy v.npy', 'three files');
    my @q = read_npy("$in/q.npy");
    my @k = read_npy("$in/k.npy");
    is("@q[0, 1] @k[0, 1]", "<f2 3,4,5,64 <f2 3,2,7,64", 'their types and shapes');
    is(files(saves_inputs('no dO', '07_flash_decoding', 'split_k', ['o.npy'])), 'k.npy q.npy v.npy', 'decoding, too');
    my $bf16 = values_of(saves_inputs('bf16', '01_tiled', 'mma', ['o.npy', 'lse.npy'], '--dtype', 'bf16') . '/q.npy');
    saves_inputs('fp32', '01_tiled', 'fma', ['o.npy', 'lse.npy'], '--dtype', 'fp32');
    is(scalar(grep { unpack('V', pack 'f<', $_) & 0xffff } @$bf16), 0, 'bf16 as fp32 files, which hold it exactly');
    is(files(saves_inputs('backward', '05_fa2_backward', 'two_pass', ['dq.npy', 'dk.npy', 'dv.npy'])), 'do.npy k.npy q.npy v.npy', 'and dO');

    my $rounded = folder('rounded');
    my %third = map { $_ => npy('<f4', [1, 1, 2, 8], [(1 / 3) x 16]) } 'q', 'k', 'v';
    run('00_naive', '--load', folder('third', %third), '--save-inputs', $rounded);
    is("@{values_of(\"$rounded/$_.npy\")}", join(' ', (1365 / 4096) x 16), "$_.npy: what was loaded, rounded") for 'q', 'k', 'v';

    my $occupied = folder('occupied_inputs');
    mkdir "$occupied/v.npy" or die "$occupied/v.npy: $!";
    my $run = run('00_naive', '--seqlen', 8, '--save-inputs', $occupied);
    is("$run->{code} $run->{err}", "2 00_naive: --save-inputs: $occupied/v.npy: cannot be written: Is a directory\n", 'a file that cannot be written: one line');
    is($run->{out} . files($occupied), 'v.npy', 'before the run, and none of the others is left behind');
    refused("--save-inputs $load{4}/: is the folder of --load, whose files it would replace", $load{4}, '--save-inputs', "$load{4}/");
}

write_text("$root/file", '');
for my $folder ("$root/missing", "$root/file", '/proc') {
    refused("--save $folder: no file can be created there", $load{2}, '--variant', 'mma', '--save', $folder);
    refused("--save-inputs $folder: no file can be created there", $load{2}, '--save-inputs', $folder);
}

# ---- all files or none (npy.c tries every call that can fail): the second cannot take its place, because a folder is in it
{
    my $save = folder('occupied', o => 'of before');
    mkdir "$save/lse.npy" or die "$save/lse.npy: $!";
    my $run = run('01_tiled', '--load', $load{2}, '--variant', 'mma', '--iters', 1, '--save', $save);
    is($run->{code}, 2, 'a file that cannot be written: exit code 2');
    is($run->{err}, "01_tiled: --save: $save/lse.npy: cannot be written: Is a directory\n", 'and one line');
    unlike($run->{out}, qr/PASS/, 'before the verdict is printed');
    is(files($save) . read_text("$save/o.npy"), 'lse.npy o.npyof before', 'and what was there before is there still, alone');
}

# ---- a limit on the size of files: a message, and not the signal that the system sends
{
    my $save = folder('limited');
    my $said = `ulimit -f 16; 01_tiled/01_tiled --seqlen 256 --variant mma --iters 1 --save $save 2>&1 >/dev/null`;
    is(($? >> 8) . " $said", "2 01_tiled: --save: $save/o.npy: cannot be written: File too large\n", '--save beyond ulimit -f: one line, exit code 2');
    is(files($save), '', 'and no file');
    $said = `ulimit -f 0; 01_tiled/01_tiled --seqlen 8 --iters 1 2>&1 >$root/rows`;
    is(($? >> 8) . " $said", "2 01_tiled: the output cannot be written: File too large\n", 'likewise the table');
}

# ---- a backward stage: the forward pass's O and LSE, beside the gradients
{
    my $save = folder('gradients');
    my $in = folder('with_do', inputs('<f4'), do => npy('<f4', \@q_shape, $q));
    my $run = run('05_fa2_backward', '--load', $in, '--variant', 'atomic', '--iters', 1, '--save', $save);
    is("$run->{code} " . files($save), '0 dk.npy dq.npy dv.npy lse.npy o.npy', '05 saves gradients, O and LSE') or diag($run->{err});
    cmp_ok(difference(values_of("$save/o.npy"), $o), '<=', 2e-3, 'O');
    cmp_ok(difference(values_of("$save/lse.npy"), $lse), '<=', 1e-5, 'LSE');
}

done_testing();
