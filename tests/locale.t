#!/usr/bin/env perl
# locale.t - in whatever language the user's system speaks, figures have a decimal point, and nothing else changes either.
#
# Under a German locale some awks read 4.62 as 4 and write 4,62; under a Turkish one the small letter of I is not i. The Makefile and
# every script therefore choose the C locale for themselves, and the scripts are tried here without make, too. On Debian
# `apt-get install locales && localedef -i de_DE -f UTF-8 de_DE.UTF-8` installs a locale.
use strict;
use warnings;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(stages);

plan skip_all => 'the CPU device will do for scripts' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
plan skip_all => 'make test-all asks it' if !$ENV{TEST_ALL};
my $build = $ENV{TEST_BUILD} // 'build/cpu';
my ($scratch, $root) = (tempdir(CLEANUP => 1), getcwd);
delete @ENV{qw(LC_ALL LANGUAGE), grep { /^LC_/ } keys %ENV};

# ---- every script, the ones to come too; `tools.sh` chooses the locale for those that read it
for my $script (glob('common/*/*.sh tests/*.sh')) {
    open my $in, '<', $script or die "$script: $!";
    like(join('', <$in>), qr/^(export LC_ALL=C|\. common\/classroom\/(tools|trial)\.sh)\b/m, "$script chooses the C locale");
}

# ---- a tree of its own, as a sweep writes into notes/results/<device>
my ($commit) = map { m{commit-(.*)} } glob "$build/commit-*";
$ENV{COMMIT} = $commit if defined $commit;
mkdir "$scratch/notes";
symlink "$root/$_", "$scratch/$_" for 'Makefile', 'common', 'build', stages();
symlink "$root/notes/$_", "$scratch/notes/$_" for map { s{notes/}{}r } grep { !/results/ } glob 'notes/*';
chdir $scratch or BAIL_OUT("$scratch: $!");
my $tiny = '--batch 1 --heads 1 --seqlen 24 --head-dim 64 --iters 1';
my $installed = `locale -a 2>/dev/null`;
my $folder = measured_in('C');

for my $locale ('de_DE.UTF-8', 'tr_TR.UTF-8') {
    SKIP: {
        my $name = $locale =~ s/\.UTF-8//r;
        skip "the locale $locale is not installed", 1 if $installed !~ /^\Q$name\E\.utf-?8$/mi;
        local $ENV{LC_ALL} = $locale;
        my $table = `make --no-print-directory compare DEVICE=cpu COMPARE_OPTIONS='$tiny' DECODE_OPTIONS='$tiny --seqlen 1 --seqlen-k 99' 2>&1`;
        unlike($table, qr/\d,\d/, "$locale: make compare prints no comma inside a figure");
        like($table, qr/^04_fa2\/fma .* [1-9]\.\de-0\d \/ [1-9]\.\de-0\d$/m, '... and the figures are whole') or diag($table);
        my $alone = "TRACE_OUT=$build-trace OUT=$build DEVICE=cpu sh common/classroom/exercise.sh";
        like(`$alone 02.1 5.2427,5.9933 2>&1`, qr/^right\n/, "$locale: a right answer to an exercise is right");
        like(`$alone 02.1 5.25,5.9933 2>&1`, qr/^not yet: number 1, 5\.25, is too high\./, '... and a wrong one is too high');
        is(measured_in($locale), $folder, "$locale: a sweep writes the same rows into the same folder");
        like(`sh common/results/splits.sh $build/07_flash_decoding/07_flash_decoding --batch 1 --heads 1 --seqlen 1 --seqlen-k 2048 --head-dim 64 --iters 1 2>&1`,
            qr/^8\t\d+\.\d\t\d+\.\d+\t\t$/m,
            "$locale: splits.sh");
        like(`$build/01_tiled/01_tiled $tiny --scale 0.5 2>&1`, qr/, scale 0\.5\n.*\d\.\de-0\d.*\nPASS/s, "$locale: a program reads and writes a point");
    }
}
done_testing;

# The folder that a sweep makes for this device, and its rows without the times.
sub measured_in {
    my ($locale) = @_;
    local @ENV{qw(LC_ALL LENGTHS MASKS)} = ($locale, 16, 'full');
    system('rm', '-rf', 'notes/results');
    system("sh common/classroom/sweep.sh $build/01_tiled/01_tiled >/dev/null 2>&1");
    return join ' ', map { my $file = $_; open my $in, '<', $file or die "$file: $!"; $file, map { join ',', (split /,/)[1 .. 12] } <$in> } glob 'notes/results/*/*';
}
