#!/usr/bin/env perl
# moving.t - the pictures that move are those of the kernels' traces, and they can be read, in motion and still.
#
#     make test-trace
use strict;
use utf8;
use warnings;
use File::Temp qw(tempdir);
use JSON::PP;
use Test::More;
use lib 'tests';
use Scratch qw(read_file write_file);

my $build = $ENV{TEST_BUILD} || 'build/cpu-trace';
my $scratch = tempdir(CLEANUP => 1);
my ($chromium) = grep { -x } map { my $name = $_; map { "$_/$name" } split /:/, $ENV{PATH} } qw(chromium chromium-browser google-chrome);
my $browser = "timeout 60 $chromium --headless --no-sandbox --disable-gpu --user-data-dir=$scratch/chrome --window-size=830,700" if $chromium;

plan skip_all => 'make test-all draws' if !$ENV{TEST_ALL};
plan skip_all => 'no python3 here' if system('command -v python3 >/dev/null') != 0;
is(system("python3 -B common/plots/moving.py $build $scratch/drawn >$scratch/out 2>&1"), 0, 'drawn') or diag(read_file("$scratch/out"));
is(join(' ', names("$scratch/drawn")), join(' ', names('notes/pictures')), 'all of them, and nothing else');
for my $name (names('notes/pictures')) {
    my $text = read_file("notes/pictures/$name");
    is(decided($text), decided(read_file("$scratch/drawn/$name")), "$name is the picture of the same run")
        or diag('make moving');
    cmp_ok(length $text, '<=', 150 * 1024, '... of at most 150 KiB');
    unlike($text, qr/<script|<animate|href=|url\((?!#)/, '... without a script, and nothing from elsewhere');
    my @seconds = $text =~ /animation:([\d.]+)s/g;
    is(scalar(grep { $_ >= 10 && $_ <= 20 } @seconds), 2, "... a turn of @seconds[0 .. 0] s");
    like($text, qr/\@media screen and \(prefers-reduced-motion:no-preference\)\{\n\.k\{animation/, '... that stands still on paper, and where less motion is wanted');
    like($text, qr/\@media screen and \(prefers-color-scheme:dark\)/, '... light and dark');
    is(join(' ', grep { $_ < 14 } $text =~ /font-size:(\d+)px/g), '', '... letters of 14 px or more');
    in_browser($name, $text);
}
like(`python3 -B common/plots/moving.py 2>&1`, qr/^moving\.py: choose a folder[^\n]*\n\z/, 'without a folder: one line');
is($? >> 8, 2, '... exit code 2');
SKIP: {
    skip 'no Chromium', 1 if !$chromium;
    my $text = read_file('notes/pictures/moving_loops.svg');
    isnt(complaints($text =~ s/(<text x=)"20"( y="32")/$1"800"$2/r), '', 'planted: a title over another, and out of the picture');
}
done_testing;

sub names { return sort map { m{(moving_\w+\.svg)$} } glob "$_[0]/moving_*.svg" }

# Without what a compiler decides: when a step ends, and the figures on the way. The last figure of each strip stays.
sub decided {
    my ($text) = @_;
    $text =~ s/\@keyframes.*\n|\.k\d+\{.*\n//g;
    $text =~ s/<text[^\n]*\n(?=<text[^\n]*\n(?:<text[^\n]*\n)*<\/g><\/g>)//g;
    $text =~ s/ y="[\d.]+"(?=[^\n]*\n<\/g><\/g>)//g;
    $text =~ s/translateY\(-?\d+px\)|done after [\d,]+ cycles|done in \d+% of the cycles| [kg] k\d+//g;
    return $text;
}

sub in_browser {
    my ($name, $text) = @_;
SKIP: {
        skip 'no Chromium', 1 if !$chromium;
        is(complaints($text), '', "$name: all texts lie inside, and no two over each other at the end");
        return if $name ne 'moving_loops.svg'; # the others are made in the same way
        my $at = sub { $text =~ s/\.k\{animation/.k,.g{animation-delay:-$_[0]s!important;animation-play-state:paused!important}\n.k{animation/r };
        my @moving = map { picture($at->($_), '') } 2, 6;
        my @still = map { picture($at->($_), '--force-prefers-reduced-motion') } 2, 6;
        ok($moving[0] ne $moving[1], '... it moves');
        ok($still[0] eq $still[1], '... and stands still where less motion is wanted');
        cmp_ok(length $still[0], '>', 10000, '... with something to see');
    }
}

# The bytes of a screenshot of the picture as an image, as a page of a code host has it.
sub picture {
    my ($text, $options) = @_;
    write_file("$scratch/picture.svg", $text);
    write_file("$scratch/picture.html", '<body style="margin:0"><img src="picture.svg" width="830">');
    unlink "$scratch/picture.png";
    system("$browser $options --screenshot=$scratch/picture.png file://$scratch/picture.html >/dev/null 2>&1");
    return -e "$scratch/picture.png" ? read_file("$scratch/picture.png") : '';
}

# Texts that leave the picture; and of those that the still shows, two over each other.
sub complaints {
    my ($text) = @_;
    write_file("$scratch/inline.html", '<!DOCTYPE html><body style="margin:0">' . $text . <<'END');
<pre id="seen"></pre><script>
const found = [], picture = document.querySelector('svg').getBoundingClientRect();
const shown = [...document.querySelectorAll('text')].filter(t => !t.closest('[clip-path]'));
for (const t of shown) {
    const box = t.getBoundingClientRect();
    if (box.left < 0 || box.right > picture.right || box.bottom > picture.bottom) found.push('outside: ' + t.textContent);
}
const still = shown.filter(t => t.getAttribute('opacity') !== '0').map(t => [t.textContent, t.getBoundingClientRect()]);
still.forEach(([a, one], i) => still.slice(i + 1).forEach(([b, other]) => {
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left), down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (across > 1 && down > 5) found.push(a + ' over ' + b);
}));
document.getElementById('seen').textContent = JSON.stringify(found);
</script>
END
    my ($seen) = `$browser --force-prefers-reduced-motion --dump-dom file://$scratch/inline.html 2>/dev/null` =~ /<pre id="seen">(.*?)<\/pre>/s;
    return join "\n", @{decode_json($seen // '["nothing seen"]')};
}
