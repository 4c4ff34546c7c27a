# Exercises of notes/06_fp8.md.
exercise '06.1',
    ask => 'the bytes of K8 that the attention kernel of mma reads at N = 512, D = 128, one head',
    answer => sub {
        my ($trace) = @_;
        my @rows = $trace->('--variant mma --heads 1 --seqlen 512 --head-dim 128');
        my ($attention) = map { $_->{kernel} } grep { $_->{mma_flops} } @rows;
        return sum_of({kernel => $attention, tensor => 'K8'}, ['bytes_read'], @rows);
    };

exercise '06.2',
    ask => "how many times e4m3's root mean square error e5m2's is, on normal inputs, to ten percent",
    within => 0.1,
    answer => sub {
        my %rmse;
        for my $format ('e4m3', 'e5m2') {
            my @options = (qw(--variant mma --batch 1 --heads 2 --seqlen 256 --head-dim 64 --iters 1 --format), $format);
            ($rmse{$format}) = map { $_->{rmse} } grep { $_->{variant} eq '06_fp8/mma' } program_rows(@options);
        }
        return $rmse{e5m2} / $rmse{e4m3};
    };

exercise '06.3',
    ask => 'the bytes that the pre-pass of mma moves for each element of Q, read and written, scales left out, to one percent',
    within => 0.01,
    answer => sub {
        my ($trace) = @_;
        my @rows = $trace->('--variant mma --heads 1 --seqlen 512 --head-dim 128');
        my ($attention) = map { $_->{kernel} } grep { $_->{mma_flops} } @rows;
        my @before = grep { $_->{kernel} && $_->{kernel} ne $attention } @rows;
        return sum_of({tensor => 'Q|Q8'}, ['bytes_read', 'bytes_written'], @before) / (512 * 128);
    };

exercise '06.4',
    ask => "four neighbouring elements of P, scaled to the format's range, their share of l, and the four as a quarter of the A operand",
    variant => 'mma',
    blank => {file => '06_fp8/mma.cu', from => 'const float shift = E::largest_exponent - m[h];',
              to => 'rounded_p[n / 4][quarter] = pack_4<E>(four[0], four[1], four[2], four[3]);'};
