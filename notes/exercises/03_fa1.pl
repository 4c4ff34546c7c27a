# Exercises of notes/03_fa1.md.
exercise '03.1',
    ask => 'the bytes of the O accumulator that fa1 reads at N = 512, D = 64, one head',
    answer => sub {
        my ($trace) = @_;
        return sum_of({tensor => 'O accumulator'}, ['bytes_read'], $trace->('--variant fa1 --heads 1 --seqlen 512 --head-dim 64'));
    };

exercise '03.2',
    copy => '03_fa1/fa1.cu', change => 'Br = 16', changed => qr/constexpr int Br = 16;/,
    ask => 'the bytes of the O accumulator read, the barriers, and the ldmatrix_x4_trans, at N = 512, D = 64, one head',
    answer => sub {
        my ($trace) = @_;
        my $options = '--variant fa1 --heads 1 --seqlen 512 --head-dim 64';
        my @rows = $trace->($options);
        my ($ldmatrix) = $trace->($options, 'text') =~ /(\d+) ldmatrix_x4_trans/;
        return (sum_of({tensor => 'O accumulator'}, ['bytes_read'], @rows), sum_of({kernel => '.*'}, ['barriers'], @rows), $ldmatrix);
    };

exercise '03.3',
    ask => 'the blocks that 03_fa1 launches for batch 4, heads 16, N = 4096',
    answer => sub { # a small problem with as many heads: the grid is batch x heads, if the trace says so for both lengths
        my ($trace) = @_;
        my @blocks = map { sum_of({kernel => '.*'}, ['blocks'], $trace->("--variant fa1 --batch 4 --heads 16 --seqlen $_")) } 32, 64;
        die "the grid depends on the length\n" if $blocks[0] != $blocks[1];
        return $blocks[0];
    };

exercise '03.4',
    ask => 'ms at --batch 8 and at --batch 16, other options left out',
    gpu => 1, within => 0.15,
    answer => sub {
        return map { my $batch = $_; map { $_->{latency_ms} } grep { $_->{variant} =~ /fa1/ }
                     program_rows('--batch', $batch, '--variant', 'fa1', '--no-validate') } 8, 16;
    };

exercise '03.5',
    ask => "m', l', and what scales the two terms of O': shared.alpha and shared.beta of this row",
    variant => 'fa1', stub => 'float m_new = m_tile, l_new = l_tile; // these two are used below',
    blank => {file => '03_fa1/fa1.cu', from => 'float m_new = fmaxf(shared.m[threadIdx.x], m_tile);',
              to => 'shared.beta[threadIdx.x] = beta * inverse;'};
